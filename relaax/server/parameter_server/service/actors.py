"""Actor indices of environments, which absent sessions keep, and ranks of connected environments."""

from __future__ import annotations

import logging
import time
from bisect import bisect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Any

_log = logging.getLogger(__name__)

MAX_KEPT = 2**20
"""Maximum number of indices kept for absent sessions. Beyond it, the longest absent sessions lose their indices."""
MAX_RANGES = 16
"""Maximum number of ranges of a session. A session that needs more gets one new range instead of its ranges."""


class Indices(Sequence[int]):
    """Indices in the order of a session's environments, stored as ranges, so that 65,536 indices need little memory."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: Sequence[range]) -> None:
        self._ranges = tuple(ranges)

    def __len__(self) -> int:
        return sum(map(len, self._ranges))

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._ranges)

    def __getitem__(self, index: Any) -> Any:
        if index == 0:  # requested with every push
            return self._ranges[0][0]
        return tuple(self)[index]


class ActorTable:
    """Indices of the environments of each session. A session that reconnects in time gets its indices again.

    The indices of a new session are consecutive, in the first gap that is large enough. The indices of a session are
    freed when it has been absent for `keep` seconds. They are freed earlier, those of the longest absent session first,
    if there are more than `capacity` sessions or more than `MAX_KEPT` indices of absent sessions. The cost of a call
    grows at most with the number of sessions, not with the number of indices. Not thread-safe.
    """

    def __init__(
        self, capacity: int = 16_384, keep: float = 3600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._capacity = capacity
        self._keep = keep
        self._clock = clock
        self._sessions: dict[str, list[range]] = {}
        self._absent: OrderedDict[str, float] = OrderedDict()  # since when, the longest absent first
        self._absent_indices = 0  # number of indices of absent sessions
        self._gaps: list[range] = []  # free ranges below `_end`, sorted, not adjacent
        self._end = 0

    def __contains__(self, session: object) -> bool:
        return session in self._sessions

    def connect(self, session: str, environments: int) -> Indices:
        """Return the indices of the first `environments` environments of a session."""
        self.expire()
        if self._absent.pop(session, None) is not None:
            self._absent_indices -= _count(self._sessions[session])
        owned = self._sessions.setdefault(session, [])
        missing = environments - _count(owned)
        if missing > 0 and len(owned) == MAX_RANGES:
            self._release(owned)
            owned.clear()
            missing = environments
        if missing > 0:
            _append(owned, self._allocate(missing))
        while len(self._sessions) > self._capacity and self._absent:
            self.remove(next(iter(self._absent)))
        return Indices(_first(owned, environments))

    def disconnect(self, session: str) -> None:
        """Mark the session as absent. No effect if it has no indices."""
        if session in self._sessions and session not in self._absent:
            self._absent[session] = self._clock()
            self._absent_indices += _count(self._sessions[session])
            self.expire()

    def remove(self, session: str) -> None:
        """Free the session's indices."""
        owned = self._sessions.pop(session, None)
        if owned is not None:
            if self._absent.pop(session, None) is not None:
                self._absent_indices -= _count(owned)
            self._release(owned)

    def expire(self) -> None:
        """Free the indices of sessions that have been absent for too long, or beyond `MAX_KEPT`."""
        limit = self._clock() - self._keep
        while self._absent:
            session, since = next(iter(self._absent.items()))
            if since > limit and self._absent_indices <= MAX_KEPT:
                break
            self.remove(session)

    def as_json(self) -> dict[str, list[list[int]]]:
        """Return the ranges of each session as [first, count], the longest absent session first."""
        order = chain(self._absent, (session for session in self._sessions if session not in self._absent))
        return {session: [[each.start, len(each)] for each in self._sessions[session]] for session in order}

    def restore(self, sessions: Mapping[str, Sequence[Any]]) -> None:
        """Restore what `as_json` returned. All sessions are absent.

        Sessions with invalid ranges, such as an index that two sessions have, are dropped.
        """
        self._gaps, self._end = [], 0
        found = {session: _ranges(indices) for session, indices in sessions.items()}
        wrong = {session for session, ranges in found.items() if not ranges}
        end = 0
        for start, stop, session in sorted((r.start, r.stop, session) for session, rs in found.items() for r in rs):
            if start < end:
                wrong.add(session)
            elif session not in wrong:
                end = stop
        right = {session: ranges for session, ranges in found.items() if session not in wrong}
        for each in sorted(chain.from_iterable(right.values()), key=lambda each: each.start):
            if each.start > self._end:
                self._gaps.append(range(self._end, each.start))
            self._end = each.stop
        self._sessions = right
        self._absent = OrderedDict.fromkeys(right, self._clock())
        self._absent_indices = sum(map(_count, right.values()))
        if wrong:
            _log.warning("dropped %d sessions of the checkpoint, whose actor indices are invalid", len(wrong))
        while len(self._sessions) > self._capacity:
            self.remove(next(iter(self._absent)))
        self.expire()

    def _allocate(self, count: int) -> range:
        """Return the first free range of this length."""
        for position, gap in enumerate(self._gaps):
            if len(gap) >= count:
                rest = gap[count:]
                self._gaps[position : position + 1] = [rest] if rest else []
                return gap[:count]
        start = self._end
        if self._gaps and self._gaps[-1].stop == start:
            start = self._gaps.pop().start
        self._end = start + count
        return range(start, self._end)

    def _release(self, ranges: Sequence[range]) -> None:
        for each in ranges:
            start, stop = each.start, each.stop
            position = bisect(self._gaps, start, key=lambda gap: gap.start)
            if position < len(self._gaps) and self._gaps[position].start == stop:
                stop = self._gaps.pop(position).stop
            if position and self._gaps[position - 1].stop == start:
                position -= 1
                start = self._gaps.pop(position).start
            if stop == self._end:
                self._end = start
            else:
                self._gaps.insert(position, range(start, stop))


def _count(ranges: Sequence[range]) -> int:
    return sum(map(len, ranges))


def _first(ranges: Sequence[range], count: int) -> list[range]:
    first = []
    for each in ranges:
        if count <= 0:
            break
        first.append(each[:count])
        count -= len(each)
    return first


def _append(ranges: list[range], more: range) -> None:
    if ranges and ranges[-1].stop == more.start:
        more = range(ranges.pop().start, more.stop)
    ranges.append(more)


def _ranges(indices: Sequence[Any]) -> list[range]:
    """Convert [first, count] pairs to ranges. Return an empty list if a pair is invalid."""
    ranges: list[range] = []
    try:
        for each in indices:
            start, count = each
            if not (type(start) is type(count) is int and 0 <= start < 2**32 and 0 < count <= 2**32 - start):
                return []
            _append(ranges, range(start, start + count))
    except (TypeError, ValueError):
        return []
    return ranges


HOLD = 10.0
"""Seconds for which a session holds the ranks of its removed worker, so that a reconnection changes no other ranks."""


@dataclass(slots=True)
class _Seat:
    session: str
    first_actor: int
    environments: int
    until: float = inf


class ActorRanks:
    """Ranks of the environments of training workers, from 0 to `count` - 1, in the order of their actor indices.

    Actor indices have gaps, because absent sessions and exploit workers have indices too. Ranks have no gaps. An
    algorithm can use an actor's rank, for example to choose its exploration rate in Ape-X. A removed worker holds its
    ranks for `hold` seconds. If its session registers another worker meanwhile, that worker gets them. Not thread-safe.
    """

    def __init__(self, hold: float = HOLD, clock: Callable[[], float] = time.monotonic) -> None:
        self._hold = hold
        self._clock = clock
        self._seats: dict[str, _Seat] = {}  # by worker id, in the order of `add`
        self._held: dict[str, _Seat] = {}  # of removed workers, by session, the first to expire first
        self._ranks: dict[str, int] = {}
        self._count = 0
        self._is_current = True

    def add(self, worker_id: str, session: str, first_actor: int, environments: int) -> None:
        """Give a worker ranks. No effect if it has some."""
        if worker_id not in self._seats:
            self._seats[worker_id] = _Seat(session, first_actor, environments)
            self._held.pop(session, None)
            self._is_current = False

    def remove(self, worker_id: str) -> None:
        """Remove a worker, whose session holds its ranks for a while. No effect if it has none."""
        seat = self._seats.pop(worker_id, None)
        if seat is not None:
            seat.until = self._clock() + self._hold
            self._held.pop(seat.session, None)
            self._held[seat.session] = seat
            self._is_current = False

    def rank_of(self, worker_id: str) -> tuple[int, int]:
        """Return the rank of the worker's first environment, 0 if it has none, and the number of ranks."""
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
