"""Connections that have not introduced themselves yet."""

from __future__ import annotations

import contextlib
import math
import selectors
import socket

import pytest

from relaax.server.rlx_server.connection.channel import MAX_REQUEST_BYTES
from relaax.server.rlx_server.listening import pending_connections as module
from relaax.server.rlx_server.listening.pending_connections import PendingConnections, PendingState


def test_when_to_look_again_at_those_that_say_a_byte_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNWATCHED_CHECK_SECONDS", 60.0)
    with (
        selectors.DefaultSelector() as selector,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        near, _ = listener.accept()
        arrivals = PendingConnections(selector, 60)
        arrivals.add(near)
        assert arrivals.due == math.inf, "the kernel calls"
        client.sendall(b"\0")
        near.setblocking(True)
        near.recv(1, socket.MSG_PEEK | socket.MSG_WAITALL)  # it is there
        near.setblocking(False)
        assert arrivals.check(near) is PendingState.WAITING
        assert arrivals.due == 0.0
        assert arrivals.check_unwatched() == []
        assert 0.0 < arrivals.due <= 60.0
        assert arrivals.drop_oldest()
        assert arrivals.due == math.inf


def test_the_oldest_makes_room_and_goes_first_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    with (
        selectors.DefaultSelector() as selector,
        socket.create_server(("127.0.0.1", 0)) as listener,
        contextlib.ExitStack() as stack,
    ):
        arrivals, came = PendingConnections(selector, 60), []
        for _ in range(4):
            stack.enter_context(socket.create_connection(listener.getsockname()))
            came.append(stack.enter_context(listener.accept()[0]))
            arrivals.add(came[-1])
            now += 1.0
        assert arrivals.drop_oldest()
        assert list(arrivals) == came[1:]
        now = 1000.0 + 60.5  # the oldest has gone already
        arrivals.expire()
        assert list(arrivals) == came[1:]
        now = 1000.0 + 61.0
        arrivals.expire()
        assert list(arrivals) == came[2:]
        assert arrivals.expired == 1
        assert [sock.fileno() >= 0 for sock in came] == [False, False, True, True]
        while arrivals.drop_oldest():
            pass


RECORD = b"\x16\x03\x01\x00\x05hello"


@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        (RECORD, PendingState.LAYERED),
        (RECORD + b"more", PendingState.LAYERED),
        (RECORD[:-1], PendingState.WAITING),
        (RECORD[:4], PendingState.WAITING),
        (
            b"\x16\x03\x01\xff\xff" + bytes(module.RECORD_BYTES),
            PendingState.LAYERED,
        ),  # longer than one may be: TLS will say so
        (b"\x16\x03\x01\xff\xff" + bytes(100), PendingState.WAITING),
        (b"\0\0\0\x05hello", PendingState.MALFORMED),
        (
            b"\0\0\0\x05hell",
            PendingState.WAITING,
        ),  # the codec of its first byte is to be answered in, so it is heard out
        (b"GET / HTTP/1.1\r\n", PendingState.MALFORMED),
    ],
)
def test_where_tls_is_to_be_spoken_its_first_record_is_waited_for(said: bytes, becomes: PendingState) -> None:
    expect_after(said, becomes, tls=True)


@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", PendingState.LAYERED),
        (b"POST / HTTP/1.1\r\n\r\nmore", PendingState.LAYERED),
        (b"GET / HTTP/1.1\r\n", PendingState.WAITING),
        (b"GET / HTTP/1.1\r\n\r", PendingState.WAITING),
        (b"GET", PendingState.WAITING),
        (b"G" * (MAX_REQUEST_BYTES - 1), PendingState.WAITING),
        (b"G" * MAX_REQUEST_BYTES, PendingState.MALFORMED),
        (b"get / HTTP/1.1\r\n\r\n", PendingState.MALFORMED),
    ],
)
def test_a_request_is_waited_for_to_the_end_of_its_header(said: bytes, becomes: PendingState) -> None:
    expect_after(said, becomes)


def expect_after(said: bytes, becomes: PendingState, tls: bool = False) -> None:
    with (
        selectors.DefaultSelector() as selector,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        near, _ = listener.accept()
        arrivals = PendingConnections(selector, 60, tls)
        arrivals.add(near)
        client.sendall(said)
        near.setblocking(True)
        near.recv(len(said), socket.MSG_PEEK | socket.MSG_WAITALL)  # it is there
        near.setblocking(False)
        assert arrivals.check(near) is becomes
        assert (near in arrivals) is (becomes is PendingState.WAITING)
        near.close()


def test_part_of_a_hello_that_expires_is_logged_with_its_length(caplog: pytest.LogCaptureFixture) -> None:
    with (
        selectors.DefaultSelector() as selector,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as near,
    ):
        arrivals = PendingConnections(selector, 0)
        arrivals.add(near)
        client.sendall(b"\0\0\0\x0e{'hello':1}")  # a length that counts itself
        near.setblocking(True)
        near.recv(15, socket.MSG_PEEK | socket.MSG_WAITALL)
        near.setblocking(False)
        assert arrivals.check(near) is PendingState.WAITING
        arrivals.expire()
    assert "15 of 18 bytes arrived (4 bytes of length and a frame of 14 bytes)" in caplog.text
