"""Accepted connections whose hello has not arrived. Nothing is read from them here.

A connection costs only a descriptor until its whole hello is in the kernel's buffer. The first four bytes give its
length, at most 64 KiB, so the kernel is asked (SO_RCVLOWAT) to wake the server first at four bytes, then at all: a
client that sends a byte per second wakes nobody. A connection whose length no hello can have is handed on at once, to
be refused. The first four bytes of a TLS connection (0x16, a version) are such a length, so it is handed on as well.

An HTTP request, with which WebSocket begins, is awaited to the end of its header, at most `MAX_REQUEST_BYTES`. Where
that will be is not known, so a connection whose request comes in pieces is looked at again at intervals.

If clients must use TLS, the first TLS record (a ClientHello, at most `RECORD_BYTES`) is awaited in the same way, and a
plain-text hello or request is as wrong as an impossible length.
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
CRUMB_SECONDS = 0.25
RECORD_BYTES = 2**14
RECORD_HEADER_BYTES = 5
_TLS_HANDSHAKE = 0x16
_INT = struct.Struct("i")
_PEER_ENDED = getattr(select, "POLLRDHUP", 0)  # on other systems than Linux such a connection expires


class PendingConnection(enum.Enum):
    """The state of a connection."""

    WAITING = "waiting"  # for the rest of its hello
    GONE = "gone"  # ended before its whole hello arrived, and closed
    WHOLE = "whole"  # a frame of a hello's size has arrived
    LAYERED = "layered"  # the first TLS record or an HTTP request has arrived, which a worker answers before a hello
    WRONG = "wrong"  # the length of its first frame is no hello's, or it is not what this port expects


@dataclass(slots=True)
class _Wait:
    deadline: float
    bytes_wanted: int
    watched: bool = True


class PendingConnections:
    """Connections that wait for their hello, each for at most `patience` seconds."""

    def __init__(self, selector: selectors.BaseSelector, patience: float, tls: bool = False) -> None:
        """`tls`: whether clients must use TLS."""
        self._selector = selector
        self._tls = tls
        self._head_bytes = RECORD_HEADER_BYTES if tls else HEADER_BYTES
        self._patience = patience
        self._waits: dict[socket.socket, _Wait] = {}  # oldest first
        self._crumbs: set[socket.socket] = set()
        self._look_again_at = 0.0
        self.expired = 0
        """The number of connections whose whole hello did not arrive in time."""

    def __len__(self) -> int:
        return len(self._waits)

    def __iter__(self) -> Iterator[socket.socket]:
        return iter(self._waits)

    def __contains__(self, sock: object) -> bool:
        return sock in self._waits

    def add(self, sock: socket.socket) -> None:
        """Wait for the hello of a new connection."""
        sock.setblocking(False)
        _call_at(sock, self._head_bytes)
        self._waits[sock] = _Wait(time.monotonic() + self._patience, self._head_bytes)
        self._selector.register(sock, selectors.EVENT_READ)

    def look(self, sock: socket.socket) -> PendingConnection:
        """Return the state of a connection. If WHOLE, LAYERED or WRONG, it is the caller's from now on."""
        wait = self._waits[sock]
        try:
            head = sock.recv(self._head_bytes, socket.MSG_PEEK)
            there = _bytes_received(sock)
        except BlockingIOError:
            return PendingConnection.WAITING
        except OSError:
            head = b""
        if not head:
            self._drop(sock)
            return PendingConnection.GONE
        needed, becomes = self._judged_request(sock) if self._is_request(head) else self._judged(head)
        if there >= needed and becomes is not PendingConnection.WAITING:
            self._release(sock)
            return becomes
        if has_ended(sock):
            self._drop(sock)
            return PendingConnection.GONE
        if needed > wait.bytes_wanted:
            wait.bytes_wanted = needed
            _call_at(sock, needed)
        elif wait.watched:
            # The kernel reports it readable all the same: its buffer is full of crumbs, or SO_RCVLOWAT is missing.
            # Polling would then return immediately each time, so the connection is checked at intervals instead.
            self._selector.unregister(sock)
            wait.watched = False
            self._crumbs.add(sock)
        return PendingConnection.WAITING

    def _is_request(self, head: bytes) -> bool:
        return not self._tls and begins_with_http(head)

    def _judged_request(self, sock: socket.socket) -> tuple[int, PendingConnection]:
        """Return as `_judged` for a connection that begins with an HTTP request."""
        there = sock.recv(MAX_REQUEST_BYTES, socket.MSG_PEEK)
        if END_OF_REQUEST in there:
            return 0, PendingConnection.LAYERED
        return 0, PendingConnection.WRONG if len(there) == MAX_REQUEST_BYTES else PendingConnection.WAITING

    def _judged(self, head: bytes) -> tuple[int, PendingConnection]:
        """Return the number of bytes to wait for, and the state of the connection once they arrive."""
        if len(head) < self._head_bytes:
            return self._head_bytes, PendingConnection.WAITING
        if self._tls and head[0] == _TLS_HANDSHAKE:
            return RECORD_HEADER_BYTES + min(int.from_bytes(head[3:], "big"), RECORD_BYTES), PendingConnection.LAYERED
        length = int.from_bytes(head[:HEADER_BYTES], "big")
        if not 0 < length <= HANDSHAKE_FRAME_BYTES:
            return 0, PendingConnection.WRONG
        return HEADER_BYTES + length, PendingConnection.WRONG if self._tls else PendingConnection.WHOLE

    @property
    def due(self) -> float:
        """Seconds until `look_again` has work; infinity if there is none."""
        return max(0.0, self._look_again_at - time.monotonic()) if self._crumbs else math.inf

    def look_again(self) -> list[tuple[socket.socket, PendingConnection]]:
        """Check the unpolled connections, at intervals, and return those that no longer wait, with their states."""
        now = time.monotonic()
        if not self._crumbs or now < self._look_again_at:
            return []
        self._look_again_at = now + CRUMB_SECONDS
        seen = [(sock, self.look(sock)) for sock in list(self._crumbs)]
        return [(sock, arrival) for sock, arrival in seen if arrival is not PendingConnection.WAITING]

    def expire(self) -> None:
        """Close connections past their deadline."""
        now = time.monotonic()
        while self._waits:
            sock, wait = next(iter(self._waits.items()))
            if wait.deadline > now:
                return
            self.expired += 1
            if not self._tls and wait.bytes_wanted > HEADER_BYTES:
                self._log_partial(sock, wait.bytes_wanted)
            self._drop(sock)

    def _log_partial(self, sock: socket.socket, wanted: int) -> None:
        there = _bytes_received(sock)
        _log.warning(
            "closed a connection whose hello did not arrive within %g s: %d of %d bytes (4 of length, which do not "
            "count themselves, and %d)",
            *(self._patience, there, wanted, wanted - HEADER_BYTES),
        )

    def drop_oldest(self) -> bool:
        """Close the oldest connection and return whether there was one."""
        for sock in self._waits:
            self._drop(sock)
            return True
        return False

    def _drop(self, sock: socket.socket) -> None:
        self._forget(sock)
        sock.close()

    def _release(self, sock: socket.socket) -> None:
        self._forget(sock)
        _call_at(sock, 1)  # the next reader must be woken by every byte

    def _forget(self, sock: socket.socket) -> None:
        if self._waits.pop(sock).watched:
            self._selector.unregister(sock)
        self._crumbs.discard(sock)


def _call_at(sock: socket.socket, count: int) -> None:
    """Make the kernel report the socket readable once `count` bytes or its end have arrived."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)


def _bytes_received(sock: socket.socket) -> int:
    (there,) = _INT.unpack(fcntl.ioctl(sock, termios.FIONREAD, bytes(_INT.size)))
    return int(there)


def has_ended(sock: socket.socket) -> bool:
    """Return whether the peer has closed its sending side, even if unread bytes remain."""
    poll = select.poll()
    poll.register(sock, _PEER_ENDED)
    return bool(poll.poll(0))
