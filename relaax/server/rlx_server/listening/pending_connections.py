"""Accepted connections whose hello has not arrived yet. This module peeks at their bytes and reads none.

A connection costs only a descriptor until its whole hello is in the kernel's buffer. The first four bytes give the
length of the hello, at most 64 KiB. The kernel wakes the server when these have arrived, and again when the whole hello
has arrived (SO_RCVLOWAT). So a client that sends one byte a second does not wake the server for each byte.

A connection whose first frame has an impossible length is passed on at once, to be refused. The first four bytes of a
TLS connection (0x16 and a version) are an impossible length too, so it is also passed on.

WebSocket begins with an HTTP request, which must arrive up to the end of its header, at most `MAX_REQUEST_BYTES`. The
length of a request is not known in advance, so a connection whose request arrives in parts is checked at intervals.

If clients must use TLS, the first TLS record (a ClientHello, at most `RECORD_BYTES`) must arrive in the same way. A
plain-text hello or HTTP request is then malformed.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import logging
import math
import select
import selectors
import socket
import struct
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass

from relaax.rlx import HANDSHAKE_FRAME_BYTES
from relaax.rlx.wire.framing import HEADER_BYTES
from relaax.server.rlx_server.connection.channel import END_OF_REQUEST, MAX_REQUEST_BYTES, begins_with_http

_log = logging.getLogger(__name__)
UNWATCHED_CHECK_SECONDS = 0.25
RECORD_BYTES = 2**14
RECORD_HEADER_BYTES = 5
_TLS_HANDSHAKE = 0x16
_INT = struct.Struct("i")
_PEER_ENDED = getattr(select, "POLLRDHUP", 0)  # Linux only; elsewhere such a connection expires


class PendingState(enum.Enum):
    """The state of a connection before it has a worker."""

    WAITING = "waiting"  # for the rest of its hello
    CLOSED = "closed"  # the client disconnected before its whole hello arrived
    HELLO = "hello"  # a whole frame of a hello's size has arrived
    LAYERED = "layered"  # the first TLS record or an HTTP request has arrived; the hello follows a worker's answer
    MALFORMED = "malformed"  # its first frame has an impossible length, or is not what this port expects


@dataclass(slots=True)
class _Wait:
    deadline: float
    bytes_wanted: int
    watched: bool = True


class PendingConnections:
    """Connections whose hello is pending, each for at most `patience` seconds."""

    def __init__(self, selector: selectors.BaseSelector, patience: float, tls: bool = False) -> None:
        """`tls`: whether clients must use TLS."""
        self._selector = selector
        self._tls = tls
        self._head_bytes = RECORD_HEADER_BYTES if tls else HEADER_BYTES
        self._patience = patience
        self._waits: dict[socket.socket, _Wait] = {}  # oldest first
        self._unwatched: set[socket.socket] = set()
        self._next_check = 0.0
        self.expired = 0
        """Number of connections whose hello did not arrive in time."""

    def __len__(self) -> int:
        return len(self._waits)

    def __iter__(self) -> Iterator[socket.socket]:
        return iter(self._waits)

    def __contains__(self, sock: object) -> bool:
        return sock in self._waits

    def add(self, sock: socket.socket) -> None:
        """Add a new connection."""
        sock.setblocking(False)
        _set_receive_threshold(sock, self._head_bytes)
        self._waits[sock] = _Wait(time.monotonic() + self._patience, self._head_bytes)
        self._selector.register(sock, selectors.EVENT_READ)

    def check(self, sock: socket.socket) -> PendingState:
        """Return the state of a connection. If HELLO, LAYERED or MALFORMED, the connection is removed from here."""
        wait = self._waits[sock]
        try:
            head = sock.recv(self._head_bytes, socket.MSG_PEEK)
            received = _bytes_received(sock)
        except BlockingIOError:
            return PendingState.WAITING
        except OSError:
            head = b""
        if not head:
            self._drop(sock)
            return PendingState.CLOSED
        needed, state = self._classify(sock, head)
        if received >= needed and state is not PendingState.WAITING:
            self._unregister(sock)
            _set_receive_threshold(sock, 1)  # later readers must be woken by every byte
            return state
        if has_ended(sock):
            self._drop(sock)
            return PendingState.CLOSED
        if needed > wait.bytes_wanted:
            wait.bytes_wanted = needed
            _set_receive_threshold(sock, needed)
        elif wait.watched:
            # The kernel reports it readable too early: its buffer is full of small parts, or SO_RCVLOWAT is missing.
            # Polling would then return immediately each time, so the connection is checked at intervals instead.
            self._selector.unregister(sock)
            wait.watched = False
            self._unwatched.add(sock)
        return PendingState.WAITING

    def _classify(self, sock: socket.socket, head: bytes) -> tuple[int, PendingState]:
        """Return the number of bytes to wait for, and the state of the connection once they have arrived."""
        if not self._tls and begins_with_http(head):
            received = sock.recv(MAX_REQUEST_BYTES, socket.MSG_PEEK)
            if END_OF_REQUEST in received:
                return 0, PendingState.LAYERED
            return 0, PendingState.MALFORMED if len(received) == MAX_REQUEST_BYTES else PendingState.WAITING
        if len(head) < self._head_bytes:
            return self._head_bytes, PendingState.WAITING
        if self._tls and head[0] == _TLS_HANDSHAKE:
            return RECORD_HEADER_BYTES + min(int.from_bytes(head[3:], "big"), RECORD_BYTES), PendingState.LAYERED
        length = int.from_bytes(head[:HEADER_BYTES], "big")
        if not 0 < length <= HANDSHAKE_FRAME_BYTES:
            return 0, PendingState.MALFORMED
        return HEADER_BYTES + length, PendingState.MALFORMED if self._tls else PendingState.HELLO

    @property
    def due(self) -> float:
        """Seconds until `check_unwatched` has connections to check; infinity if there are none."""
        return max(0.0, self._next_check - time.monotonic()) if self._unwatched else math.inf

    def check_unwatched(self) -> list[tuple[socket.socket, PendingState]]:
        """Check unwatched connections, at intervals. Return those that no longer wait, with their states."""
        now = time.monotonic()
        if not self._unwatched or now < self._next_check:
            return []
        self._next_check = now + UNWATCHED_CHECK_SECONDS
        seen = [(sock, self.check(sock)) for sock in list(self._unwatched)]
        return [(sock, state) for sock, state in seen if state is not PendingState.WAITING]

    def expire(self) -> None:
        """Close connections past their deadline."""
        now = time.monotonic()
        while self._waits:
            sock, wait = next(iter(self._waits.items()))
            if wait.deadline > now:
                return
            self.expired += 1
            if not self._tls and (wanted := wait.bytes_wanted) > HEADER_BYTES:
                _log.warning(
                    "closed a connection whose hello did not arrive within %g s: %d of %d bytes arrived (4 bytes of "
                    "length and a frame of %d bytes)",
                    *(self._patience, _bytes_received(sock), wanted, wanted - HEADER_BYTES),
                )
            self._drop(sock)

    def drop_oldest(self) -> bool:
        """Close the oldest connection. Return False if there is none."""
        for sock in self._waits:
            self._drop(sock)
            return True
        return False

    def _drop(self, sock: socket.socket) -> None:
        self._unregister(sock)
        sock.close()

    def _unregister(self, sock: socket.socket) -> None:
        if self._waits.pop(sock).watched:
            self._selector.unregister(sock)
        self._unwatched.discard(sock)


def _set_receive_threshold(sock: socket.socket, count: int) -> None:
    """Make the kernel report the socket readable once `count` bytes or the end of its data have arrived."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)


def _bytes_received(sock: socket.socket) -> int:
    (received,) = _INT.unpack(fcntl.ioctl(sock, termios.FIONREAD, bytes(_INT.size)))
    return int(received)


def has_ended(sock: socket.socket) -> bool:
    """Return whether the peer has closed its sending side, even if unread bytes remain."""
    poll = select.poll()
    poll.register(sock, _PEER_ENDED)
    return bool(poll.poll(0))
