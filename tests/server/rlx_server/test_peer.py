"""Tests of the socket of one connection: deadlines and limits, over a real pair of sockets."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from relaax import rlx
from relaax.server.rlx_server.connection import peer as peer_module
from relaax.server.rlx_server.connection.channel import PeerDisconnected, TlsLayer
from relaax.server.rlx_server.connection.peer import Peer, PeerSentBye, PeerTimeout, ServerStopping
from relaax.server.rlx_server.worker_reports import REVOKED
from support.keys import Keys
from support.rlx_pair import make_hello


class Pair:
    """A peer and the client's end of its socket; `stop` ends the worker's lifeline."""

    def __init__(self) -> None:
        near, self.client = socket.socketpair()
        self.client.settimeout(20)
        self._lifeline, self._server = os.pipe()
        self.connection = rlx.ClientConnection()
        self.peer = Peer(near, rlx.ServerConnection(), self._lifeline)
        self._near = near

    def stop(self) -> None:
        if self._server >= 0:
            os.close(self._server)
            self._server = -1

    def close(self) -> None:
        self.stop()
        os.close(self._lifeline)
        self._near.close()
        self.client.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    created = Pair()
    yield created
    created.close()


def test_message_sent_in_pieces_is_received_whole(pair: Pair) -> None:
    hello = make_hello(environment="maze")
    data = pair.connection.send(hello)
    sender = threading.Thread(target=lambda: [pair.client.sendall(data[i : i + 7]) for i in range(0, len(data), 7)])
    sender.start()
    assert pair.peer.receive(20) == hello
    sender.join()


def test_client_that_sends_single_bytes_times_out(pair: Pair) -> None:
    data = pair.connection.send(make_hello(environment="maze" * 40))  # more than half a minute of bytes
    done = threading.Event()

    def trickle() -> None:
        for i in range(len(data) - 1):
            pair.client.sendall(data[i : i + 1])
            if done.wait(0.2):
                return

    sender = threading.Thread(target=trickle)
    sender.start()
    started = time.monotonic()
    with pytest.raises(PeerTimeout):
        pair.peer.receive(0.3)
    done.set()
    sender.join()
    assert 0.3 <= time.monotonic() - started < 25


def test_disconnected_client_raises_peer_disconnected(pair: Pair) -> None:
    pair.client.close()
    with pytest.raises(PeerDisconnected):
        pair.peer.receive(20)


def test_server_stop_interrupts_a_waiting_receive(pair: Pair) -> None:
    ending = threading.Timer(0.05, pair.stop)
    ending.start()
    with pytest.raises(ServerStopping):
        pair.peer.receive(20)
    ending.join()  # so that `stop` has marked the pipe as closed


def test_server_stop_is_noticed_while_a_client_floods(pair: Pair) -> None:
    welcome(pair)
    pair.stop()
    ping = pair.connection.send(rlx.Ping())
    with pytest.raises(ServerStopping):
        while True:
            pair.client.sendall(ping)
            pair.peer.receive(20)


def test_stopping_server_first_reads_a_received_hello(pair: Pair) -> None:
    pair.client.sendall(pair.connection.send(make_hello()))
    pair.stop()
    assert isinstance(pair.peer.receive(20), rlx.Hello)  # so that the refusal is in the client's codec
    with pytest.raises(ServerStopping):
        pair.peer.receive(20)


def test_send_to_a_client_that_does_not_read_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "SEND_SECONDS", 0.1)
    pair = Pair()
    try:
        request_action(pair, 5_000_000)
        with pytest.raises(PeerDisconnected):
            pair.peer.send(rlx.Actions([np.zeros((1, 5_000_000), np.float32)]))
    finally:
        pair.close()


def test_answer_longer_than_the_send_buffer_arrives_whole(pair: Pair) -> None:
    request_action(pair, 300_000)
    sent = np.arange(300_000, dtype=np.float32)[None]
    sender = threading.Thread(target=pair.peer.send, args=(rlx.Actions([sent]),))
    sender.start()
    while (event := pair.connection.next_event()) is rlx.NEED_DATA:
        pair.connection.receive_data(pair.client.recv(1 << 16))
    sender.join()
    assert isinstance(event, rlx.Actions)
    np.testing.assert_array_equal(event.action[0], sent)


def test_client_that_reads_late_receives_the_whole_answer(pair: Pair) -> None:
    """The timeout of an answer is half a minute."""
    request_action(pair, 300_000)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        sent = pool.submit(pair.peer.answer, rlx.Actions([np.zeros((1, 300_000), np.float32)]))
        with pytest.raises(TimeoutError):
            sent.result(0.5)
        while (event := pair.connection.next_event()) is rlx.NEED_DATA:
            pair.connection.receive_data(pair.client.recv(1 << 16))
        sent.result(20)
    assert isinstance(event, rlx.Actions)


def test_last_error_is_delivered_despite_unread_client_bytes(pair: Pair) -> None:
    pair.client.sendall(pair.connection.send(make_hello()) + b"\0" * 100_000)
    pair.peer.receive(20)
    pair.peer.refuse(rlx.ErrorCode.OVERLOADED, "full", 5.0)
    closer = threading.Thread(target=pair.peer.close)
    closer.start()
    pair.connection.receive_data(pair.client.recv(1 << 16))
    event = pair.connection.next_event()
    assert isinstance(event, rlx.Error)
    assert (event.code, event.message, event.retry_after_seconds) == (rlx.ErrorCode.OVERLOADED, "full", 5.0)
    pair.client.close()
    closer.join(10)
    assert not closer.is_alive()


def request_action(pair: Pair, size: int) -> None:
    """Send an init from the client, so that an action of `size` numbers is due."""
    pair.client.sendall(pair.connection.send(make_hello(action_space=rlx.Box(shape=(size,)))))
    pair.peer.receive(20)
    pair.peer.send(rlx.Welcome("s", "a"))
    pair.connection.receive_data(pair.client.recv(1 << 16))
    pair.connection.next_event()
    pair.client.sendall(pair.connection.send(rlx.Init([np.zeros((1, 2), np.float32)])))
    pair.peer.receive(20)


def welcome(pair: Pair) -> None:
    pair.client.sendall(pair.connection.send(make_hello()))
    pair.peer.receive(20)
    pair.peer.send(rlx.Welcome("s", "a"))


@pytest.mark.parametrize("sends", [True, False], ids=["client floods", "client is silent"])
def test_close_ends_within_the_drain_time(monkeypatch: pytest.MonkeyPatch, pair: Pair, sends: bool) -> None:
    monkeypatch.setattr(peer_module, "DRAIN_SECONDS", 0.2)
    monkeypatch.setattr(peer_module, "DRAIN_BYTES", 2**40)  # only the time limits the drain
    welcome(pair)
    stop = threading.Event()

    def flood() -> None:
        while sends and not stop.is_set():
            try:
                pair.client.sendall(b"\0" * 65536)
            except OSError:
                return

    sender = threading.Thread(target=flood)
    sender.start()
    started = time.monotonic()
    pair.peer.close()
    assert 0.15 < time.monotonic() - started < 10
    stop.set()
    sender.join(10)
    assert not sender.is_alive()


def test_close_does_not_wait_for_a_refused_silent_client(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    monkeypatch.setattr(peer_module, "DRAIN_SECONDS", 200)
    pair.client.sendall(pair.connection.send(make_hello()))
    pair.peer.receive(20)
    pair.peer.refuse(rlx.ErrorCode.OVERLOADED, "full")
    started = time.monotonic()
    pair.peer.close()
    assert time.monotonic() - started < 60
    pair.connection.receive_data(pair.client.recv(1 << 16))
    assert isinstance(pair.connection.next_event(), rlx.Error)


def wait_for_pings(pair: Pair, count: int) -> None:
    """Wait until the client has received `count` pings."""
    while count:
        while (event := pair.connection.next_event()) is rlx.NEED_DATA:
            pair.connection.receive_data(pair.client.recv(1 << 16))
        count -= isinstance(event, rlx.Ping)


def test_heartbeat_callback_error_is_logged_once_and_ignored(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("nothing to measure")

    pair.client.sendall(pair.connection.send(make_hello()))
    pair.peer.receive(20)
    pair.peer.beat = fail
    pair.peer.start_heartbeat(0.02)
    wait_for_pings(pair, 5)
    pair.peer.close()
    (record,) = (record for record in caplog.records if record.exc_info)
    assert "nothing to measure" in str(record.exc_info)


def test_ping_is_not_delayed_by_the_heartbeat_callback(pair: Pair) -> None:
    release = threading.Event()
    pair.client.sendall(pair.connection.send(make_hello()))
    pair.peer.receive(20)
    pair.peer.beat = lambda: bool(release.wait(60)) or None
    pair.peer.start_heartbeat(0.0)  # due at once
    wait_for_pings(pair, 1)
    release.set()
    pair.peer.close()


def test_close_ends_after_the_drain_bytes(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    monkeypatch.setattr(peer_module, "DRAIN_SECONDS", 20)
    monkeypatch.setattr(peer_module, "DRAIN_BYTES", 1000)
    pair.client.sendall(b"\0" * 2000)
    started = time.monotonic()
    pair.peer.close()
    assert time.monotonic() - started < 10


def make_worker_busy(pair: Pair) -> None:
    """Send a welcome and receive an init, so that the worker is busy with its answer."""
    welcome(pair)
    pair.connection.receive_data(pair.client.recv(1 << 16))
    pair.connection.next_event()
    pair.client.sendall(pair.connection.send(rlx.Init([np.zeros((1, 2), np.float32)])))
    assert isinstance(pair.peer.receive(20), rlx.Init)


def test_messages_received_while_busy_are_kept_in_order(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "BUSY_SECONDS", 0.0)
    make_worker_busy(pair)
    sent = [rlx.Metrics((("height", float(index)),)) for index in range(3)]
    pair.client.sendall(b"".join(pair.connection.send(message) for message in (*sent, rlx.Ping(9))))
    pair.peer.start_heartbeat(0.02)
    while (event := pair.connection.next_event()) in (rlx.NEED_DATA, rlx.Ping()):
        if event is rlx.NEED_DATA:
            pair.connection.receive_data(pair.client.recv(1 << 16))
    assert event == rlx.Pong(9), "the heartbeat has read all messages"
    pair.peer.answer(rlx.Actions([np.zeros(1, np.int64)]))
    assert [pair.peer.receive(20) for _ in sent] == sent
    pair.peer.close()


@pytest.mark.slow
@pytest.mark.checks("relaax/server/rlx_server")
@pytest.mark.parametrize("ending", ["bye", "invalid bytes", "disconnect", "server stop"])
def test_end_of_the_connection_interrupts_a_busy_worker(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(peer_module, "BUSY_SECONDS", 0.0)
    make_worker_busy(pair)
    interrupted = threading.Event()
    pair.peer.interrupt = interrupted.set
    if ending == "bye":
        pair.client.sendall(pair.connection.send(rlx.Bye()))
    elif ending == "invalid bytes":
        pair.client.sendall(b"\0\0\0\0")
    elif ending == "disconnect":
        pair.client.close()
    else:
        pair.stop()
    pair.peer.start_heartbeat(0.02)
    assert interrupted.wait(20)
    raised = {
        "bye": PeerSentBye,
        "invalid bytes": rlx.RemoteProtocolError,
        "disconnect": PeerDisconnected,
        "server stop": ServerStopping,
    }[ending]
    for call in (
        pair.peer.raise_pending_error,
        lambda: pair.peer.receive(20),
        lambda: pair.peer.answer(rlx.Actions([np.zeros(1, np.int64)])),
    ):
        with pytest.raises(raised):
            call()
    pair.peer.close()


def test_stopped_heartbeat_uses_no_closed_descriptor(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file may have the number of a closed descriptor."""
    monkeypatch.setattr(peer_module, "BUSY_SECONDS", 0.0)
    worker, server = os.pipe()
    pair.peer.watch_reports(worker)
    make_worker_busy(pair)
    os.write(server, REVOKED)
    pair.peer.stop_heartbeat()
    pair.client.sendall(pair.connection.send(rlx.Bye()))
    pair.peer._check_while_busy()
    pair.peer._ping_after(0.0)
    assert os.read(worker, 2) == REVOKED
    pair.peer.raise_pending_error()
    for descriptor in (worker, server):
        os.close(descriptor)


def test_half_closed_client_receives_its_answer(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "BUSY_SECONDS", 0.0)
    make_worker_busy(pair)
    pair.client.shutdown(socket.SHUT_WR)
    pair.peer.start_heartbeat(0.2)
    wait_for_pings(pair, 2)
    pair.peer.answer(rlx.Actions([np.zeros(1, np.int64)]))
    while isinstance(event := pair.connection.next_event(), rlx.Ping) or event is rlx.NEED_DATA:
        if event is rlx.NEED_DATA:
            pair.connection.receive_data(pair.client.recv(1 << 16))
    assert isinstance(event, rlx.Actions)
    with pytest.raises(PeerDisconnected):
        pair.peer.receive(20)


def test_refusing_a_disconnected_client_raises_no_error(pair: Pair) -> None:
    pair.client.close()
    pair.peer.refuse(rlx.ErrorCode.OVERLOADED, "full")
    pair.peer.close()


def test_refusing_after_a_bye_raises_no_error(pair: Pair) -> None:
    pair.client.sendall(rlx.ClientConnection().send(rlx.Bye()))
    assert isinstance(pair.peer.receive(20), rlx.Bye)
    pair.peer.refuse(rlx.ErrorCode.UNAVAILABLE, "the server is stopping")
    pair.peer.close()


def test_send_after_a_tls_failure_raises_peer_disconnected(tmp_path: Path) -> None:
    """A heartbeat may send while the other thread has just received invalid bytes."""
    keys = Keys(tmp_path / "keys")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.path("server.pem"), keys.path("server-key.pem"))
    layer = TlsLayer(context)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = keys.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    while not layer.is_agreed:
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        layer.decode(outgoing.read())
        incoming.write(layer.to_send())
    assert layer.encode(b"something")
    with pytest.raises(PeerDisconnected):
        layer.decode(b"\x17\x03\x03\x00\x20" + bytes(32))
    with pytest.raises(PeerDisconnected):
        layer.encode(b"something")
