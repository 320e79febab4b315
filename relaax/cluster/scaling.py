"""The number of RLX servers that a training needs, from their reports about connections. Independent of Ray."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from relaax.configuration.sections import ClusterSection

RETRY_SECONDS = 10.0
"""Time within which a refused client retries at each server. Clients wait for five seconds and a random delay."""
TRIES = 2.0
"""Approximate number of retries of a client within RETRY_SECONDS."""
REFUSALS = ("max_workers", "memory")
"""Reasons of refusals that another server would avoid."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Connections of an RLX server: served, free places, and refused for lack of a place since its start."""

    workers: int
    free: int
    refused: int


class Scaling:
    """Policy for the number of servers. Times are seconds of a monotonic clock."""

    def __init__(self, section: ClusterSection) -> None:
        """`section`: the configuration; its `scaling` must not be fixed."""
        self._least = section.rlx_servers or 1
        self._most = section.max_rlx_servers or self._least
        self._moves = section.scaling == "refusals"
        self._buffer = section.free_places if self._moves else 0
        self._idle_seconds = section.idle_seconds
        self._refused: dict[int, int] = {}
        self._recent: deque[tuple[float, int]] = deque()
        self._unneeded_since: float | None = None

    def wanted(self, now: float, servers: Sequence[Occupancy | None]) -> int:
        """Return the number of servers wanted. `servers`: the present ones in order; None for a server that starts."""
        answering = [server for server in servers if server is not None]
        self._note_refusals(now, servers)
        present = len(servers)
        if not answering:
            return min(max(present, self._least), self._most)
        places = max(1, max(server.workers + server.free for server in answering))
        waiting = sum(count for _, count in self._recent) / (TRIES * len(answering))
        room = sum(server.free for server in answering) + places * (present - len(answering))
        lacking = self._buffer + math.ceil(waiting) - room
        if lacking > 0 and present < self._most:
            self._unneeded_since = None
            self._recent.clear()
            return min(self._most, present + math.ceil(lacking / places))
        return self._fewer(now, servers, present)

    def _note_refusals(self, now: float, servers: Sequence[Occupancy | None]) -> None:
        before, self._refused = self._refused, {}
        for number, server in enumerate(servers):
            if server is not None:
                more = server.refused - before.get(number, 0)
                self._refused[number] = server.refused
                if more > 0 and number in before:
                    self._recent.append((now, more))
        while self._recent and now - self._recent[0][0] > RETRY_SECONDS:
            self._recent.popleft()

    def _fewer(self, now: float, servers: Sequence[Occupancy | None], present: int) -> int:
        last = servers[-1]
        others = [server for server in servers[:-1] if server is not None]
        unneeded = (
            last is not None
            and present > self._least
            and not self._recent
            and (
                sum(server.free for server in others) >= last.workers + self._buffer
                if self._moves
                else not last.workers
            )
        )
        if not unneeded:
            self._unneeded_since = None
        elif self._unneeded_since is None:
            self._unneeded_since = now
        elif now - self._unneeded_since >= self._idle_seconds:
            self._unneeded_since = None
            return present - 1
        return min(max(present, self._least), self._most)
