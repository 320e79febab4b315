"""One connection's socket: what is waited for, and for how long."""

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
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def wire_to(listener: socket.socket, response_timeout: float) -> ClientWire:
    return ClientWire(
        "127.0.0.1",
        listener.getsockname()[1],
        codec="protobuf",
        connect_timeout=20.0,
        response_timeout=response_timeout,
    )


def begin(wire: ClientWire, near: socket.socket) -> None:
    """Hello and welcome."""
    hello = rlx.Hello(rlx.Box(0, 255, (WIDE,), np.uint8), rlx.Discrete(2))
    wire.send(hello)
    server = rlx.ServerConnection()
    while server.next_event() is rlx.NEED_DATA:
        server.receive_data(near.recv(1 << 16))
    near.sendall(server.send(rlx.Welcome("s", "a")))
    assert isinstance(wire.receive(), rlx.Welcome)


@pytest.mark.parametrize("response_timeout", [0.25, 1e-9])
def test_a_server_that_says_nothing_is_waited_for_so_long(listener: socket.socket, response_timeout: float) -> None:
    wire = wire_to(listener, response_timeout)
    near, _ = listener.accept()
    with near, pytest.raises(ConnectionInterrupted, match=f"sent nothing for {response_timeout:g} s"):
        wire.receive()
    wire.close()


def test_signals_do_not_put_the_end_of_waiting_off(listener: socket.socket) -> None:
    """Each has Python begin the wait that it interrupts anew."""
    heard: list[int] = []
    over = threading.Event()
    wire = wire_to(listener, response_timeout=1.0)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    main = threading.main_thread().ident
    assert main is not None

    def disturb() -> None:
        for _ in range(40):  # 20 s in all
            if over.wait(0.5):
                return
            signal.pthread_kill(main, signal.SIGUSR1)

    disturber = threading.Thread(target=disturb)
    near, _ = listener.accept()
    try:
        with near, pytest.raises(ConnectionInterrupted, match="sent nothing for 1 s"):
            disturber.start()
            wire.receive()
        assert len(heard) < 40
    finally:
        over.set()
        disturber.join()
        signal.signal(signal.SIGUSR1, before)
        wire.close()


@pytest.mark.slow
@pytest.mark.checks("relaax/client")
def test_a_server_that_takes_a_message_in_slowly_is_waited_for(listener: socket.socket) -> None:
    """For longer than it may be silent, as long as something goes on."""
    response_timeout = 1.5
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # what the near end has not read waits with us
    wire = wire_to(listener, response_timeout)
    near, _ = listener.accept()
    with near:
        begin(wire, near)
        init = rlx.Init([np.zeros((1, WIDE), np.uint8)])
        sending = threading.Thread(target=wire.send, args=(init,))
        begun = time.monotonic()
        sending.start()
        got, still = 0, 0.0
        while got < WIDE:
            piece = len(near.recv(WIDE // 16, socket.MSG_WAITALL))
            assert piece
            got += piece
            sending.join(response_timeout / 6)
            if sending.is_alive():
                still = time.monotonic() - begun
        sending.join()
    assert still > response_timeout
    wire.close()


def test_a_server_that_takes_nothing_in_is_left(listener: socket.socket) -> None:
    wire = wire_to(listener, response_timeout=1.0)
    near, _ = listener.accept()
    with near:
        begin(wire, near)
        with pytest.raises(ConnectionInterrupted, match=r"the connection broke \(timed out\)"):
            wire.send(rlx.Init([np.zeros((1, WIDE), np.uint8)]))
    wire.close()


def test_a_signal_ends_the_waiting(listener: socket.socket) -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    wire = wire_to(listener, response_timeout=60.0)
    near, _ = listener.accept()
    before = signal.signal(signal.SIGUSR1, stop)
    main = threading.main_thread().ident
    assert main is not None
    waker = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGUSR1))
    try:
        with near, pytest.raises(Stop):
            waker.start()
            wire.receive()
    finally:
        waker.join()
        signal.signal(signal.SIGUSR1, before)
        wire.close()


@pytest.mark.parametrize("address", ["{}", "ws://{}"])
@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_the_port_of_a_grpc_server_is_named(address: str, codec: Codec) -> None:
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


def test_a_server_that_closes_before_its_welcome_may_be_another_one(listener: socket.socket) -> None:
    wire = wire_to(listener, 5.0)
    near, _ = listener.accept()
    wire.send(rlx.Hello(rlx.Box(shape=(1,)), rlx.Discrete(2)))
    near.recv(1 << 16)
    near.close()
    with pytest.raises(ConnectionInterrupted, match="before its welcome: is it an RLX server without TLS?") as closed:
        wire.receive()
    assert closed.value.retryable
    wire.close()


def test_a_frame_of_rlx_is_never_taken_for_http2() -> None:
    assert is_http2(b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\x00\x03")
    assert not is_http2(b"\x00\x00\x18\x04\x00\x00\x00\x00")
    assert not is_http2(b"\x00\x00\x18\x04" + b'{"welcome":{}}')
