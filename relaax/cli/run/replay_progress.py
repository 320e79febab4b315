"""What happens to the replay memory of a run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from relaax.cli.replay_shards import ReplayShards
from relaax.server.replay_server.held_table import TableTallies
from relaax.transport.channel import Target

ASK_SECONDS = 1.0
WINDOW_SECONDS = 10.0
"""Rates are means of so long."""


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """All tables of the shards that answer, together. Rates are those of the last seconds, None until they are known.

    samples_per_insert: of these seconds, too. mean_age: items that its shard has taken since one that was drawn lately.
    """

    shards: int
    answering: int
    size: int
    capacity: int
    mean_age: float
    inserts_per_second: float | None = None
    samples_per_second: float | None = None
    updates_per_second: float | None = None

    @property
    def samples_per_insert(self) -> float | None:
        """Return how many items were drawn for each that went in; None if none did."""
        if not self.inserts_per_second or self.samples_per_second is None:
            return None
        return self.samples_per_second / self.inserts_per_second


@dataclass(frozen=True, slots=True)
class _Moment:
    time: float
    answering: frozenset[str]
    inserts: int
    samples: int
    updates: int

    def precedes(self, later: _Moment) -> bool:
        """Whether what was counted between both has happened in between: no shard has gone, come or begun anew."""
        grown = self.inserts <= later.inserts and self.samples <= later.samples and self.updates <= later.updates
        return grown and self.answering == later.answering


class ReplayProgressReader:
    """Asks the replay servers about once a second, and waits for none of them."""

    def __init__(self, token: str = "") -> None:
        """`token`: the replay servers' token."""
        self._token = token
        self._addresses: Sequence[str] = ()
        self._shards = ReplayShards([])
        self._moments: deque[_Moment] = deque()
        self._asked = 0.0
        self.latest: ReplayProgress | None = None

    def poll(self, addresses: Sequence[str], updates: int) -> ReplayProgress | None:
        """Return the newest progress of the replay servers at `addresses`; None if there are none.

        `updates`: how many the training has so far.
        """
        if list(addresses) != list(self._addresses):
            self.close()
            self._addresses, self.latest = list(addresses), None
            self._moments.clear()
            self._shards = ReplayShards([Target(address, self._token) for address in addresses])
        now = time.monotonic()
        if addresses and (self.latest is None or now - self._asked >= ASK_SECONDS):
            self._asked = now
            self.latest = self._look(now, updates)
        return self.latest

    def close(self) -> None:
        """Close the connections."""
        self._shards.close()

    def _look(self, now: float, updates: int) -> ReplayProgress:
        views = self._shards.look(0.0)
        there = [view for view in views if view.status is not None]
        tallies = sum((view.sum for view in there), TableTallies())
        answering = frozenset(view.address for view in there)
        last = _Moment(now, answering, tallies.inserts, tallies.samples, updates)
        if self._moments and not self._moments[-1].precedes(last):
            self._moments.clear()
        self._moments.append(last)
        while now - self._moments[0].time > WINDOW_SECONDS:
            self._moments.popleft()
        first = self._moments[0]
        seconds = last.time - first.time
        known = seconds > 0 and bool(there)
        return ReplayProgress(
            shards=len(views),
            answering=len(there),
            size=tallies.size,
            capacity=tallies.capacity,
            mean_age=tallies.mean_age,
            inserts_per_second=(last.inserts - first.inserts) / seconds if known else None,
            samples_per_second=(last.samples - first.samples) / seconds if known else None,
            updates_per_second=(last.updates - first.updates) / seconds if known else None,
        )
