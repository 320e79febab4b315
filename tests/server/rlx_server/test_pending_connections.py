"""Tests of connections that have not sent a whole hello."""

from __future__ import annotations

import contextlib
import math
import selectors
import socket

import pytest

from relaax.server.rlx_server.connection.channel import MAX_REQUEST_BYTES
from relaax.server.rlx_server.listening import pending_connections as module
from relaax.server.rlx_server.listening.pending_connections import PendingConnections, PendingState


def test_partial_hello_is_checked_again_after_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNWATCHED_CHECK_SECONDS", 60.0)
    with (
        selectors.DefaultSelector() as selector,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        server_end, _ = listener.accept()
        pending = PendingConnections(selector, 60)
        pending.add(server_end)
        assert pending.due == math.inf, "the selector reports new bytes"
        client.sendall(b"\0")
        server_end.setblocking(True)
        server_end.recv(1, socket.MSG_PEEK | socket.MSG_WAITALL)  # until the bytes have arrived
        server_end.setblocking(False)
        assert pending.check(server_end) is PendingState.WAITING
        assert pending.due == 0.0
        assert pending.check_unwatched() == []
        assert 0.0 < pending.due <= 60.0
        assert pending.drop_oldest()
        assert pending.due == math.inf


def test_oldest_connection_is_dropped_and_expires_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    with (
        selectors.DefaultSelector() as selector,
        socket.create_server(("127.0.0.1", 0)) as listener,
        contextlib.ExitStack() as stack,
    ):
        pending, accepted = PendingConnections(selector, 60), []
        for _ in range(4):
            stack.enter_context(socket.create_connection(listener.getsockname()))
            accepted.append(stack.enter_context(listener.accept()[0]))
            pending.add(accepted[-1])
            now += 1.0
        assert pending.drop_oldest()
        assert list(pending) == accepted[1:]
        now = 1000.0 + 60.5  # the oldest connection was dropped
        pending.expire()
        assert list(pending) == accepted[1:]
        now = 1000.0 + 61.0
        pending.expire()
        assert list(pending) == accepted[2:]
        assert pending.expired == 1
        assert [sock.fileno() >= 0 for sock in accepted] == [False, False, True, True]
        while pending.drop_oldest():
            pass


RECORD = b"\x16\x03\x01\x00\x05hello"


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (RECORD, PendingState.LAYERED),
        (RECORD + b"more", PendingState.LAYERED),
        (RECORD[:-1], PendingState.WAITING),
        (RECORD[:4], PendingState.WAITING),
        (
            b"\x16\x03\x01\xff\xff" + bytes(module.RECORD_BYTES),
            PendingState.LAYERED,
        ),  # longer than a TLS record may be: the TLS layer reports the error
        (b"\x16\x03\x01\xff\xff" + bytes(100), PendingState.WAITING),
        (b"\0\0\0\x05hello", PendingState.MALFORMED),
        (
            b"\0\0\0\x05hell",
            PendingState.WAITING,
        ),  # refused only when it is whole: its first byte decides the codec of the error
        (b"GET / HTTP/1.1\r\n", PendingState.MALFORMED),
    ],
)
def test_tls_port_waits_for_the_first_tls_record(data: bytes, state: PendingState) -> None:
    expect_after(data, state, tls=True)


@pytest.mark.parametrize(
    ("data", "state"),
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
def test_http_request_is_pending_until_its_header_ends(data: bytes, state: PendingState) -> None:
    expect_after(data, state)


def expect_after(data: bytes, state: PendingState, tls: bool = False) -> None:
    with (
        selectors.DefaultSelector() as selector,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        server_end, _ = listener.accept()
        pending = PendingConnections(selector, 60, tls)
        pending.add(server_end)
        client.sendall(data)
        server_end.setblocking(True)
        server_end.recv(len(data), socket.MSG_PEEK | socket.MSG_WAITALL)  # until the bytes have arrived
        server_end.setblocking(False)
        assert pending.check(server_end) is state
        assert (server_end in pending) is (state is PendingState.WAITING)
        server_end.close()


def test_expired_partial_hello_is_logged_with_its_length(caplog: pytest.LogCaptureFixture) -> None:
    with (
        selectors.DefaultSelector() as selector,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as server_end,
    ):
        pending = PendingConnections(selector, 0)
        pending.add(server_end)
        client.sendall(b"\0\0\0\x0e{'hello':1}")  # the frame has only 11 bytes
        server_end.setblocking(True)
        server_end.recv(15, socket.MSG_PEEK | socket.MSG_WAITALL)
        server_end.setblocking(False)
        assert pending.check(server_end) is PendingState.WAITING
        pending.expire()
    assert "15 of 18 bytes arrived (4 bytes of length and a frame of 14 bytes)" in caplog.text
