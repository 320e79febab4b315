"""Scalars of many workers, aggregated until they are written."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from relaax.metrics.names import CLIENTS, FairNames, check_name
from relaax.metrics.rate_limited_log import RateLimitedLog
from relaax.metrics.returns import RecentReturns

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Mean:
    """A running mean: the sum of the samples and their number."""

    total: float = 0.0
    count: int = 0

    def add(self, total: float, count: int = 1) -> None:
        """Add `count` samples whose sum is `total`.

        Raises OverflowError without a change if the sum of two finite totals overflows.
        """
        together = self.total + total
        if math.isinf(together) and math.isfinite(self.total) and math.isfinite(total):
            raise OverflowError(f"the sum of {self.total:g} and {total:g} overflows")
        self.total = together
        self.count += count

    @property
    def value(self) -> float:
        """The mean; 0 if there are no samples."""
        return self.total / self.count if self.count else 0.0


class Aggregator:
    """A collector of samples, which any thread adds. One writer calls `drain` to get their means.

    If a sum overflows, the sample is dropped and a warning is logged at most once a minute. Names beyond the first
    `max_names` are dropped, and a warning is logged once. Names that clients choose are counted separately: at most
    `max_names`, shared fairly among the workers (see `FairNames`).
    """

    def __init__(self, max_names: int = 1024) -> None:
        self._max_names = max_names
        self._names: set[str] = set()
        self._clients_names = FairNames(max_names)
        self._full = False
        self._warn = RateLimitedLog(_log)
        self._means: dict[str, Mean] = {}
        self._max_staleness = 0
        self._staleness: deque[int] = deque(maxlen=100)
        self._actors_staleness: deque[int] = deque(maxlen=100)
        self._returns = RecentReturns()
        self._lock = threading.Lock()

    def episodes(self, episodes: Iterable[tuple[float, int]], client: str = "") -> None:
        """Add finished episodes of a client, in order, as (return, length)."""
        with self._lock:
            for episode_return, length in episodes:
                if self._returns.add(episode_return, client):
                    self._add("episode/return", episode_return, 1)
                self._add("episode/length", length, 1)

    def scalars(self, scalars: Iterable[tuple[str, float, int]], worker_id: str = "") -> None:
        """Add samples of a worker as (name, sum, count). Raises ValueError, and adds nothing, if a name is invalid."""
        checked = [(check_name(name), total, count) for name, total, count in scalars]
        with self._lock:
            for name, total, count in checked:
                self._add(name, total, count, worker_id)

    def forget(self, worker_id: str) -> None:
        """Release the client-chosen names that only this worker used. Called when it has disconnected."""
        with self._lock:
            self._clients_names.forget(worker_id)

    def staleness(self, versions: int) -> None:
        """Record the staleness of a gradient, in parameter versions."""
        with self._lock:
            self._staleness.append(versions)
            self._max_staleness = max(self._max_staleness, versions)
            self._add("staleness/mean", versions, 1)

    def actor_staleness(self, versions: int) -> None:
        """Record the staleness, in versions, of the parameters of a worker that sends no gradients."""
        with self._lock:
            self._actors_staleness.append(versions)
            self._add("staleness/actors", versions, 1)

    def drain(self) -> dict[str, float]:
        """Return the means since the last call, by name."""
        p95 = self.staleness_p95()
        with self._lock:
            means, self._means = self._means, {}
            values = {name: mean.value for name, mean in means.items() if mean.count}
            if "staleness/mean" in values:
                values["staleness/max"] = float(self._max_staleness)
                values["staleness/p95"] = p95
            if "episode/return" in values and self._returns.mean is not None:
                values["episode/mean_return_100"] = self._returns.mean
            self._max_staleness = 0
            return values

    def progress(self) -> tuple[int, float | None, float | None, float]:
        """Return episodes, mean return of the last 100, best such mean, and mean staleness of the last 100 pushes."""
        with self._lock:
            staleness = sum(self._staleness) / len(self._staleness) if self._staleness else 0.0
            return self._returns.episodes, self._returns.mean, self._returns.best, staleness

    def agreed_return(self, present: Collection[str]) -> float | None:
        """Return the mean return without the influence of a single client (see `RecentReturns.agreed`)."""
        with self._lock:
            return self._returns.agreed(present)

    @property
    def discarded_returns(self) -> int:
        """Number of episodes whose returns were discarded."""
        return self._returns.discarded

    def staleness_p95(self) -> float:
        """Return the 95th percentile of staleness over the last 100 pushes; 0 before the first."""
        with self._lock:
            ordered = sorted(self._staleness)
        return float(ordered[math.ceil(0.95 * len(ordered)) - 1]) if ordered else 0.0

    def mean_actor_staleness(self) -> float | None:
        """Return the mean staleness of actors in their last 100 pushes; None before the first."""
        with self._lock:
            return sum(self._actors_staleness) / len(self._actors_staleness) if self._actors_staleness else None

    def returns_as_json(self) -> dict[str, Any]:
        """Return the state of the episode returns, for a checkpoint."""
        with self._lock:
            return self._returns.as_json()

    def restore_returns(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the episode returns from a checkpoint."""
        with self._lock:
            self._returns.restore(state)

    def _add(self, name: str, total: float, count: int, worker_id: str = "") -> None:
        if self._has_place(name, worker_id):
            try:
                self._means.setdefault(name, Mean()).add(total, count)
            except OverflowError as error:
                self._warn("samples of the metric %s are dropped: %s", name, error)
        elif not self._full:
            _log.warning("more than %d different metrics: %s and other new ones are dropped", self._max_names, name)
            self._full = True

    def _has_place(self, name: str, worker_id: str) -> bool:
        if name.startswith(CLIENTS):
            return self._clients_names.admits(name, worker_id)
        if name not in self._names and len(self._names) < self._max_names:
            self._names.add(name)
        return name in self._names
