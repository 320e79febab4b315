"""Tests of the socket of one connection: timeouts, signals and wrong ports."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from relaax import rlx
from relaax.client import Client, Failure
from relaax.client.connection.client import Codec
from relaax.client.connection.failure import ConnectionInterrupted
from relaax.client.connection.wire import ClientWire
from relaax.rlx.connection import GRPC_PORT_ERROR
from relaax.rlx.wire.framing import is_http2

WIDE = 8_000_000  # bytes of an observation: more than sockets hold


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def wire_to(listener: socket.socket, response_timeout: float) -> ClientWire:
    return ClientWire(
        "127.0.0.1",
        listener.getsockname()[1],
        codec="protobuf",
        connect_timeout=20.0,
        response_timeout=response_timeout,
    )


def start_connection(wire: ClientWire, server_end: socket.socket) -> None:
    """Send the hello and receive the welcome."""
    hello = rlx.Hello(rlx.Box(0, 255, (WIDE,), np.uint8), rlx.Discrete(2))
    wire.send(hello)
    server = rlx.ServerConnection()
    while server.next_event() is rlx.NEED_DATA:
        server.receive_data(server_end.recv(1 << 16))
    server_end.sendall(server.send(rlx.Welcome("s", "a")))
    assert isinstance(wire.receive(), rlx.Welcome)


@pytest.mark.parametrize("response_timeout", [0.25, 1e-9])
def test_silent_server_is_waited_for_until_the_timeout(listener: socket.socket, response_timeout: float) -> None:
    wire = wire_to(listener, response_timeout)
    server_end, _ = listener.accept()
    with server_end, pytest.raises(ConnectionInterrupted, match=f"sent nothing for {response_timeout:g} s"):
        wire.receive()
    wire.close()


def test_signals_do_not_extend_the_timeout(listener: socket.socket) -> None:
    """Python restarts a system call that a signal interrupts."""
    signals: list[int] = []
    finished = threading.Event()
    wire = wire_to(listener, response_timeout=1.0)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: signals.append(number))
    main = threading.main_thread().ident
    assert main is not None

    def send_signals() -> None:
        for _ in range(40):  # 20 s in all
            if finished.wait(0.5):
                return
            signal.pthread_kill(main, signal.SIGUSR1)

    sender = threading.Thread(target=send_signals)
    server_end, _ = listener.accept()
    try:
        with server_end, pytest.raises(ConnectionInterrupted, match="sent nothing for 1 s"):
            sender.start()
            wire.receive()
        assert len(signals) < 40
    finally:
        finished.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
        wire.close()


@pytest.mark.slow
@pytest.mark.checks("relaax/client")
def test_slowly_reading_server_is_waited_for(listener: socket.socket) -> None:
    """The send may take longer than the response timeout, as long as the server reads some bytes."""
    response_timeout = 1.5
    listener.setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16
    )  # so that unread bytes stay in the buffer of the sender
    wire = wire_to(listener, response_timeout)
    server_end, _ = listener.accept()
    with server_end:
        start_connection(wire, server_end)
        init = rlx.Init([np.zeros((1, WIDE), np.uint8)])
        sending = threading.Thread(target=wire.send, args=(init,))
        start = time.monotonic()
        sending.start()
        received, blocked_seconds = 0, 0.0
        while received < WIDE:
            piece = len(server_end.recv(WIDE // 16, socket.MSG_WAITALL))
            assert piece
            received += piece
            sending.join(response_timeout / 6)
            if sending.is_alive():
                blocked_seconds = time.monotonic() - start
        sending.join()
    assert blocked_seconds > response_timeout
    wire.close()


def test_server_that_does_not_read_times_out(listener: socket.socket) -> None:
    wire = wire_to(listener, response_timeout=1.0)
    server_end, _ = listener.accept()
    with server_end:
        start_connection(wire, server_end)
        with pytest.raises(ConnectionInterrupted, match=r"the connection broke \(timed out\)"):
            wire.send(rlx.Init([np.zeros((1, WIDE), np.uint8)]))
    wire.close()


def test_exception_of_a_signal_handler_ends_the_wait(listener: socket.socket) -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    wire = wire_to(listener, response_timeout=60.0)
    server_end, _ = listener.accept()
    before = signal.signal(signal.SIGUSR1, stop)
    main = threading.main_thread().ident
    assert main is not None
    waker = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGUSR1))
    try:
        with server_end, pytest.raises(Stop):
            waker.start()
            wire.receive()
    finally:
        waker.join()
        signal.signal(signal.SIGUSR1, before)
        wire.close()


@pytest.mark.parametrize("address", ["{}", "ws://{}"])
@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_grpc_port_is_reported_as_such(address: str, codec: Codec) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    spaces = {"observation_space": rlx.Box(shape=(1,)), "action_space": rlx.Discrete(2)}
    try:
        with (
            Client(address.format(f"127.0.0.1:{port}"), codec=codec, retry_seconds=60, **spaces) as client,
            pytest.raises(Failure) as failed,
        ):
            client.connect()
    finally:
        server.stop(None).wait()
    assert str(failed.value).endswith(GRPC_PORT_ERROR)


def test_close_before_the_welcome_hints_at_a_wrong_server(listener: socket.socket) -> None:
    wire = wire_to(listener, 5.0)
    server_end, _ = listener.accept()
    wire.send(rlx.Hello(rlx.Box(shape=(1,)), rlx.Discrete(2)))
    server_end.recv(1 << 16)
    server_end.close()
    with pytest.raises(ConnectionInterrupted, match="before its welcome: is it an RLX server without TLS?") as closed:
        wire.receive()
    assert closed.value.retryable
    wire.close()


def test_rlx_frame_is_not_detected_as_http2() -> None:
    assert is_http2(b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\x00\x03")
    assert not is_http2(b"\x00\x00\x18\x04\x00\x00\x00\x00")
    assert not is_http2(b"\x00\x00\x18\x04" + b'{"welcome":{}}')
