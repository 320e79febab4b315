"""Connections whose hello has arrived and that wait for a worker."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from relaax.server.rlx_server.listening.pending_connections import PendingConnection, has_ended
from relaax.server.strikes import network_of

STALE_SECONDS = 5.0
"""A client that has waited this long and has closed its sending side is assumed to have left."""

NEW_SECONDS = 5.0
"""A client that has waited less is new. In a crowd, new clients come first, in order; of the others, the newest."""


class AdmissionQueue:
    """Serve clients in order of arrival; in a crowd, by the network with the fewest unproven clients, new ones first.

    In pure order of arrival, nobody would be served in time behind a crowd that keeps returning. `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[socket.socket, float] = {}  # oldest first
        self._network_of: dict[socket.socket, str] = {}
        self._layered: set[socket.socket] = set()

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[socket.socket]:
        return iter(self._since)

    def add(self, sock: socket.socket, arrival: PendingConnection = PendingConnection.WHOLE) -> None:
        """Add a connection whose whole hello has arrived, or the beginning of a layer that will hold it (LAYERED)."""
        self._since[sock] = self._clock()
        if arrival is PendingConnection.LAYERED:
            self._layered.add(sock)
        with contextlib.suppress(OSError):  # it has disconnected, which its worker will notice
            self._network_of[sock] = network_of(sock.getpeername()[0])

    def next(self, crowd: Mapping[str, int], layered: bool = True) -> socket.socket | None:
        """Return the connection to serve now; None if none waits.

        `crowd`: the number of unproven clients by network; empty if there is no crowd. `layered`: whether
        connections with a layer, such as TLS or WebSocket, may be served.
        """
        while waiting := [sock for sock in self._since if layered or sock not in self._layered]:
            sock = self._beside(waiting, crowd) if crowd else waiting[0]
            if self._clock() - self._since[sock] < STALE_SECONDS or not has_ended(sock):
                return sock
            self.remove(sock)
            sock.close()
        return None

    def _beside(self, waiting: Iterable[socket.socket], crowd: Mapping[str, int]) -> socket.socket:
        now = self._clock()

        def turn(sock: socket.socket) -> tuple[int, bool, float]:
            since, network = self._since[sock], self._network_of.get(sock, "")
            new = now - since <= NEW_SECONDS
            return crowd.get(network, 0), not new, since if new else -since

        return min(waiting, key=turn)

    def remove(self, sock: socket.socket) -> PendingConnection:
        """Remove a connection, which is the caller's from now on, and return what of it has arrived."""
        del self._since[sock]
        self._network_of.pop(sock, None)
        if sock not in self._layered:
            return PendingConnection.WHOLE
        self._layered.remove(sock)
        return PendingConnection.LAYERED

    def drop_oldest(self) -> bool:
        """Close the oldest connection and return whether there was one."""
        for sock in self._since:
            self.remove(sock)
            sock.close()
            return True
        return False
