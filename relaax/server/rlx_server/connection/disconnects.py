"""Reasons for which a worker ends a connection, and how it ends."""

from __future__ import annotations

import socket
import time

DRAIN_BYTES = 4 * 2**20


class PeerGone(Exception):
    """The client has closed the connection, or the network has failed."""


class PeerLeft(Exception):
    """The client has said goodbye before it was answered."""


class PeerSilent(Exception):
    """The client sent nothing before the deadline."""


class ServerStopping(Exception):
    """The server is stopping its workers."""


class SlotTaken(Exception):
    """The server is stopping this worker: its client is unproven, and others wait for its place."""


class Revoked(Exception):
    """The server is stopping this worker: the client's token has been revoked."""


def drain(sock: socket.socket, buffer: memoryview, seconds: float) -> None:
    """Discard incoming data until the client closes its end, for at most `seconds`. Raises OSError."""
    deadline, drained = time.monotonic() + seconds, 0
    while drained < DRAIN_BYTES and (remaining := deadline - time.monotonic()) > 0:
        sock.settimeout(remaining)
        count = sock.recv_into(buffer)
        if not count:
            break
        drained += count
