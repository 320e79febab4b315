"""Rank the environments of the training workers that are connected."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

HOLD = 10.0
"""Seconds for which the ranks of a worker that has gone stay its session's, so that a reconnection moves no other."""


@dataclass(slots=True)
class _Seat:
    session: str
    first_actor: int
    environments: int
    until: float = inf


class ActorRanks:
    """Numbers the environments of training workers from 0 to `count` - 1, in the order of their actor indices.

    Actor indices are kept for sessions that are absent, and exploiting connections have some too. Ranks have no gaps:
    what an actor does by its place among all actors, such as its rung on Ape-X's ladder, goes by them. A worker that is
    removed holds its ranks for `hold` seconds. If its session comes with another worker, that one has them. Not
    thread-safe.
    """

    def __init__(self, hold: float = HOLD, clock: Callable[[], float] = time.monotonic) -> None:
        self._hold = hold
        self._clock = clock
        self._seats: dict[str, _Seat] = {}  # by worker, in the order in which they were added
        self._held: dict[str, _Seat] = {}  # by session, the first to expire first
        self._ranks: dict[str, int] = {}
        self._count = 0
        self._is_current = True

    def add(self, worker_id: str, session: str, first_actor: int, environments: int) -> None:
        """Give a worker ranks; nothing happens if it has some."""
        if worker_id not in self._seats:
            self._seats[worker_id] = _Seat(session, first_actor, environments)
            self._held.pop(session, None)
            self._is_current = False

    def remove(self, worker_id: str) -> None:
        """Note that a worker has gone; nothing happens if it has no ranks."""
        seat = self._seats.pop(worker_id, None)
        if seat is not None:
            seat.until = self._clock() + self._hold
            self._held.pop(seat.session, None)
            self._held[seat.session] = seat
            self._is_current = False

    def of(self, worker_id: str) -> tuple[int, int]:
        """Return the rank of the worker's first environment, 0 if it has none, and how many ranks there are."""
        self._expire()
        if not self._is_current:
            self._rank()
        return self._ranks.get(worker_id, 0), self._count

    def _expire(self) -> None:
        if self._held:
            now = self._clock()
            while self._held and (first := next(iter(self._held.values()))).until <= now:
                del self._held[first.session]
                self._is_current = False

    def _rank(self) -> None:
        seats = [(seat.first_actor, worker_id, seat.environments) for worker_id, seat in self._seats.items()]
        seats += [(seat.first_actor, "", seat.environments) for seat in self._held.values()]
        self._ranks, self._count = {}, 0
        for _, worker_id, environments in sorted(seats):
            if worker_id:
                self._ranks[worker_id] = self._count
            self._count += environments
        self._is_current = True
