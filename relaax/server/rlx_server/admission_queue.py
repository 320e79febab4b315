"""Connections whose hello is there, and that wait for a worker."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping

from relaax.server.rlx_server.pending_connections import has_ended
from relaax.server.strikes import network_of

STALE_SECONDS = 5.0
"""A client that has waited so long and has ended its stream has left: who came for an answer would still listen."""


NEW_SECONDS = 5.0
"""So long a client is new. Beside a crowd new ones are served in turn, and before all others the newest."""


class AdmissionQueue:
    """First come, first served; beside a crowd those of the network that has the fewest of it, and new ones first.

    In turn behind all of a crowd that comes back without end nobody would be served in time. `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[socket.socket, float] = {}  # the oldest comes first
        self._network_of: dict[socket.socket, str] = {}

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[socket.socket]:
        return iter(self._since)

    def add(self, sock: socket.socket) -> None:
        """Its whole hello has come."""
        self._since[sock] = self._clock()
        with contextlib.suppress(OSError):  # it has gone, which whoever serves it will notice
            self._network_of[sock] = network_of(sock.getpeername()[0])

    def next(self, crowd: Mapping[str, int]) -> socket.socket | None:
        """Who is to be served now; None where nobody waits.

        `crowd`: how many of each network are there and do no good; empty where there is no crowd.
        """
        while self._since:
            sock = self._beside(crowd) if crowd else next(iter(self._since))
            if self._clock() - self._since[sock] < STALE_SECONDS or not has_ended(sock):
                return sock
            self.remove(sock)
            sock.close()
        return None

    def _beside(self, crowd: Mapping[str, int]) -> socket.socket:
        now = self._clock()

        def turn(sock: socket.socket) -> tuple[int, bool, float]:
            since, network = self._since[sock], self._network_of.get(sock, "")
            new = now - since <= NEW_SECONDS
            return crowd.get(network, 0), not new, since if new else -since

        return min(self._since, key=turn)

    def remove(self, sock: socket.socket) -> None:
        """It waits no longer, and is the caller's."""
        del self._since[sock]
        self._network_of.pop(sock, None)

    def drop_oldest(self) -> bool:
        """Whether there was one."""
        for sock in self._since:
            self.remove(sock)
            sock.close()
            return True
        return False
