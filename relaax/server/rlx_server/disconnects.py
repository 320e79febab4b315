"""Why a connection ends, as its worker learns it, and how it ends."""

from __future__ import annotations

import socket
import time

DRAIN_BYTES = 4 * 2**20


class PeerGone(Exception):
    """The client has closed the connection, or the network has."""


class PeerLeft(Exception):
    """The client has said goodbye, before it could be answered."""


class PeerSilent(Exception):
    """The client said nothing before the deadline."""


class ServerStopping(Exception):
    """The server wants its workers to end."""


class SlotTaken(Exception):
    """The server wants this worker to end: others wait, and its client has proved nothing."""


class Revoked(Exception):
    """The server wants this worker to end: the client's token lets nobody in any more."""


def drain(sock: socket.socket, buffer: memoryview, seconds: float) -> None:
    """Drop what comes, until the client has closed its end, for so many seconds at most. Raises OSError."""
    deadline, drained = time.monotonic() + seconds, 0
    while drained < DRAIN_BYTES and (remaining := deadline - time.monotonic()) > 0:
        sock.settimeout(remaining)
        count = sock.recv_into(buffer)
        if not count:
            break
        drained += count
