"""The socket of one connection: deadlines and bounds, over a real pair of sockets."""

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
    made = Pair()
    yield made
    made.close()


def test_a_message_may_come_in_any_number_of_pieces(pair: Pair) -> None:
    hello = make_hello(environment="maze")
    data = pair.connection.send(hello)
    sender = threading.Thread(target=lambda: [pair.client.sendall(data[i : i + 7]) for i in range(0, len(data), 7)])
    sender.start()
    assert pair.peer.receive(20) == hello
    sender.join()


def test_a_client_that_sends_a_byte_now_and_then_is_silent_all_the_same(pair: Pair) -> None:
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


def test_a_client_that_has_gone_is_told_from_one_that_is_silent(pair: Pair) -> None:
    pair.client.close()
    with pytest.raises(PeerDisconnected):
        pair.peer.receive(20)


def test_the_end_of_the_server_is_noticed_while_waiting(pair: Pair) -> None:
    end = threading.Timer(0.05, pair.stop)
    end.start()
    with pytest.raises(ServerStopping):
        pair.peer.receive(20)
    end.join()  # it has noted what it closed before anybody else looks


def test_the_end_of_the_server_is_noticed_though_the_client_never_pauses(pair: Pair) -> None:
    welcome(pair)
    pair.stop()
    ping = pair.connection.send(rlx.Ping())
    with pytest.raises(ServerStopping):
        while True:
            pair.client.sendall(ping)
            pair.peer.receive(20)


def test_a_server_that_ends_reads_the_hello_that_is_there_first(pair: Pair) -> None:
    pair.client.sendall(pair.connection.send(make_hello()))
    pair.stop()
    assert isinstance(pair.peer.receive(20), rlx.Hello)  # so that the refusal is in the client's codec
    with pytest.raises(ServerStopping):
        pair.peer.receive(20)


def test_a_client_that_does_not_read_is_not_written_to_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "SEND_SECONDS", 0.1)
    pair = Pair()
    try:
        begin_episode(pair, 5_000_000)
        with pytest.raises(PeerDisconnected):
            pair.peer.send(rlx.Actions([np.zeros((1, 5_000_000), np.float32)]))
    finally:
        pair.close()


def test_an_answer_that_the_socket_does_not_take_at_once_arrives_whole(pair: Pair) -> None:
    begin_episode(pair, 300_000)
    said = np.arange(300_000, dtype=np.float32)[None]
    sender = threading.Thread(target=pair.peer.send, args=(rlx.Actions([said]),))
    sender.start()
    while (event := pair.connection.next_event()) is rlx.NEED_DATA:
        pair.connection.receive_data(pair.client.recv(1 << 16))
    sender.join()
    assert isinstance(event, rlx.Actions)
    np.testing.assert_array_equal(event.action[0], said)


def test_a_client_that_reads_after_a_while_has_its_answer_whole(pair: Pair) -> None:
    """It has half a minute, not some milliseconds."""
    begin_episode(pair, 300_000)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        sent = pool.submit(pair.peer.answer, rlx.Actions([np.zeros((1, 300_000), np.float32)]))
        with pytest.raises(TimeoutError):
            sent.result(0.5)
        while (event := pair.connection.next_event()) is rlx.NEED_DATA:
            pair.connection.receive_data(pair.client.recv(1 << 16))
        sent.result(20)
    assert isinstance(event, rlx.Actions)


def test_what_was_said_last_is_read_though_the_client_has_sent_more(pair: Pair) -> None:
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


def begin_episode(pair: Pair, size: int) -> None:
    """Let the client say init, so that an action of `size` numbers is due."""
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


@pytest.mark.parametrize("sends", [True, False], ids=["sends without end", "says nothing more"])
def test_closing_takes_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch, pair: Pair, sends: bool) -> None:
    monkeypatch.setattr(peer_module, "DRAIN_SECONDS", 0.2)
    monkeypatch.setattr(peer_module, "DRAIN_BYTES", 2**40)  # the time alone must do
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


def test_a_client_that_was_not_let_in_and_has_said_nothing_more_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, pair: Pair
) -> None:
    monkeypatch.setattr(peer_module, "DRAIN_SECONDS", 200)
    pair.client.sendall(pair.connection.send(make_hello()))
    pair.peer.receive(20)
    pair.peer.refuse(rlx.ErrorCode.OVERLOADED, "full")
    started = time.monotonic()
    pair.peer.close()
    assert time.monotonic() - started < 60
    pair.connection.receive_data(pair.client.recv(1 << 16))
    assert isinstance(pair.connection.next_event(), rlx.Error)


def heard_pings(pair: Pair, count: int) -> None:
    """Wait for so many."""
    while count:
        while (event := pair.connection.next_event()) is rlx.NEED_DATA:
            pair.connection.receive_data(pair.client.recv(1 << 16))
        count -= isinstance(event, rlx.Ping)


def test_what_fails_beside_the_heartbeat_is_logged_once_and_does_not_stop_it(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("nothing to measure")

    pair.client.sendall(pair.connection.send(make_hello()))
    pair.peer.receive(20)
    pair.peer.beat = fail
    pair.peer.start_heartbeat(0.02)
    heard_pings(pair, 5)
    pair.peer.close()
    (record,) = (record for record in caplog.records if record.exc_info)
    assert "nothing to measure" in str(record.exc_info)


def test_a_ping_waits_for_nothing_that_is_done_beside_it(pair: Pair) -> None:
    heard = threading.Event()
    pair.client.sendall(pair.connection.send(make_hello()))
    pair.peer.receive(20)
    pair.peer.beat = lambda: bool(heard.wait(60)) or None
    pair.peer.start_heartbeat(0.0)  # due at once
    heard_pings(pair, 1)
    heard.set()
    pair.peer.close()


def test_draining_ends_at_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    monkeypatch.setattr(peer_module, "DRAIN_SECONDS", 20)
    monkeypatch.setattr(peer_module, "DRAIN_BYTES", 1000)
    pair.client.sendall(b"\0" * 2000)
    started = time.monotonic()
    pair.peer.close()
    assert time.monotonic() - started < 10


def listening(pair: Pair) -> None:
    """The client has its welcome and said init, and the worker is busy with that from now on."""
    welcome(pair)
    pair.connection.receive_data(pair.client.recv(1 << 16))
    pair.connection.next_event()
    pair.client.sendall(pair.connection.send(rlx.Init([np.zeros((1, 2), np.float32)])))
    assert isinstance(pair.peer.receive(20), rlx.Init)


def test_what_a_client_says_while_the_worker_is_busy_is_kept_in_order(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "BUSY_SECONDS", 0.0)
    listening(pair)
    said = [rlx.Metrics((("height", float(index)),)) for index in range(3)]
    pair.client.sendall(b"".join(pair.connection.send(message) for message in (*said, rlx.Ping(9))))
    pair.peer.start_heartbeat(0.02)
    while (event := pair.connection.next_event()) in (rlx.NEED_DATA, rlx.Ping()):
        if event is rlx.NEED_DATA:
            pair.connection.receive_data(pair.client.recv(1 << 16))
    assert event == rlx.Pong(9), "the heartbeat has heard all of it"
    pair.peer.answer(rlx.Actions([np.zeros(1, np.int64)]))
    assert [pair.peer.receive(20) for _ in said] == said
    pair.peer.close()


@pytest.mark.slow
@pytest.mark.checks("relaax/server/rlx_server")
@pytest.mark.parametrize("end", ["a bye", "nonsense", "it has gone", "the server stops"])
def test_what_ends_the_connection_of_a_busy_worker_interrupts_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(peer_module, "BUSY_SECONDS", 0.0)
    listening(pair)
    interrupted = threading.Event()
    pair.peer.interrupt = interrupted.set
    if end == "a bye":
        pair.client.sendall(pair.connection.send(rlx.Bye()))
    elif end == "nonsense":
        pair.client.sendall(b"\0\0\0\0")
    elif end == "it has gone":
        pair.client.close()
    else:
        pair.stop()
    pair.peer.start_heartbeat(0.02)
    assert interrupted.wait(20)
    raised = {
        "a bye": PeerSentBye,
        "nonsense": rlx.RemoteProtocolError,
        "it has gone": PeerDisconnected,
        "the server stops": ServerStopping,
    }[end]
    for wants in (
        pair.peer.raise_pending_error,
        lambda: pair.peer.receive(20),
        lambda: pair.peer.answer(rlx.Actions([np.zeros(1, np.int64)])),
    ):
        with pytest.raises(raised):
            wants()
    pair.peer.close()


def test_a_client_that_has_ended_its_stream_and_listens_has_its_answer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "BUSY_SECONDS", 0.0)
    listening(pair)
    pair.client.shutdown(socket.SHUT_WR)
    pair.peer.start_heartbeat(0.2)
    heard_pings(pair, 2)
    pair.peer.answer(rlx.Actions([np.zeros(1, np.int64)]))
    while isinstance(event := pair.connection.next_event(), rlx.Ping) or event is rlx.NEED_DATA:
        if event is rlx.NEED_DATA:
            pair.connection.receive_data(pair.client.recv(1 << 16))
    assert isinstance(event, rlx.Actions)
    with pytest.raises(PeerDisconnected):
        pair.peer.receive(20)


def test_a_refusal_to_a_client_that_has_gone_is_no_error(pair: Pair) -> None:
    pair.client.close()
    pair.peer.refuse(rlx.ErrorCode.OVERLOADED, "full")
    pair.peer.close()


def test_a_refusal_after_a_bye_is_no_error(pair: Pair) -> None:
    pair.client.sendall(rlx.ClientConnection().send(rlx.Bye()))
    assert isinstance(pair.peer.receive(20), rlx.Bye)
    pair.peer.refuse(rlx.ErrorCode.UNAVAILABLE, "the server is stopping")
    pair.peer.close()


def test_over_tls_that_has_failed_nothing_can_be_said(tmp_path: Path) -> None:
    """A heartbeat may try to, while the other thread has just heard nonsense."""
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
