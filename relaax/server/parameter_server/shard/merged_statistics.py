"""The merged samples of all workers, except clients whose samples are outliers."""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

from relaax.metrics.rate_limited_log import RateLimitedLog
from relaax.parameters.moments import MAX_STATISTIC_NAME, Float64Vector, Moments, MomentsOutOfRange
from relaax.server.parameter_server.shard.state import Statistics

_log = logging.getLogger(__name__)

OUTLYING = 100.0
"""Limit of the root mean square of a client's samples, as a multiple of the median over the clients.

Each element of the samples has its own limit. A median below 1 counts as 1. A client that exceeds the limit in one
element is an outlier.
"""
JUDGES = 3
"""Minimum number of clients for a comparison. With only two, it is unknown which one is wrong."""
PROVEN = 1000
"""Number of samples from which a client is compared only with clients that have as many.

The first steps of episodes may have small values.
"""
COMPARED_CLIENTS = 64
"""Maximum number of clients with separate sums. Beyond it, the least recent client loses its separate sums."""
REFRESH = 256
"""Number of pushes with samples after which clients are compared again."""
CHECK_PUSHES = 7
"""Number of pushes of a client after which it is checked against its limit."""


class MergedStatistics:
    """The moments of each client, and the merged moments of all clients except outliers. Not thread-safe.

    A client is compared by all of its samples. An outlier's samples are included again when their mean square is within
    the limit. The limit changes with the samples of the clients. Samples from a checkpoint are compared in the same
    way.
    """

    def __init__(self, lengths: Mapping[str, int]) -> None:
        self._statistics = {name: _Statistic(name, length) for name, length in lengths.items()}
        self.dropped_samples = 0
        """Number of samples that this process could not merge."""
        self._warn = RateLimitedLog(_log)
        self._merge_all()

    @property
    def merged(self) -> Statistics:
        """The merged samples by name. An update replaces the mapping and does not change it."""
        return self._merged

    @property
    def outlying_clients(self) -> int:
        """The current number of clients that are outliers."""
        return len(set[str]().union(*(each.outlying for each in self._statistics.values())) - {_EARLIER})

    def check(self, samples: Statistics) -> None:
        """Raise ValueError if a name is unknown or a length differs."""
        for name, moments in samples.items():
            if name not in self._statistics:
                raise ValueError(f"unknown statistic {name[:MAX_STATISTIC_NAME]!r}: the algorithm does not declare it")
            size = self._merged[name].size
            if moments.size != size:
                raise ValueError(f"statistic {name!r} has samples of {size} numbers, not {moments.size}")

    def add(self, client: str, samples: Statistics) -> None:
        """Add samples of a client that `check` has accepted."""
        if not samples:
            return
        for name, moments in samples.items():
            try:
                self._statistics[name].add(client, moments)
            except MomentsOutOfRange as why:  # no error for the client: the cause may be another client's samples
                self.dropped_samples += 1
                self._warn("dropped a sample of the statistic %s (%s): %s", name, client or "unnamed", why)
        self._merge_all()

    def restore(self, statistics: Statistics) -> None:
        """Restore merged moments. If those of a statistic are unusable, it starts empty and a warning is logged."""
        for name, statistic in self._statistics.items():
            statistic.restore(_usable(name, statistics[name]))
        self._merge_all()

    def _merge_all(self) -> None:
        self._merged = MappingProxyType({name: each.merged for name, each in self._statistics.items()})


_EARLIER = "earlier samples"
_PUSHES_OF_EACH = 32  # pushes per client between two comparisons, whose cost grows with the number of clients


class _Samples:
    """Sums over a client's samples, relative to the mean of its first push, so that a large mean costs no precision."""

    def __init__(self, moments: Moments) -> None:
        self.count = moments.count
        self.pushes = 1
        self._origin = moments.mean
        self._sum = np.zeros(moments.size)
        self._squares = moments.m2.copy()

    def add(self, moments: Moments) -> None:
        """Add samples. They are within the limits of `Moments`."""
        difference = moments.mean - self._origin
        weighted = difference * moments.count
        self.pushes += 1
        self.count += moments.count
        self._sum += weighted
        weighted *= difference
        self._squares += weighted
        self._squares += moments.m2

    @property
    def mean_square(self) -> Float64Vector:
        """The mean square of all samples, float64 [D]. There is at least one sample."""
        squares: Float64Vector = self._squares + self._origin * (2 * self._sum + self.count * self._origin)
        squares /= self.count
        return squares

    @property
    def is_proven(self) -> bool:
        """Whether this client has enough samples to be compared only with clients that have as many."""
        return self.count >= PROVEN

    @property
    def moments(self) -> Moments:
        """The moments of all samples. There is at least one sample."""
        mean = self._sum / self.count
        return Moments(self.count, self._origin + mean, np.maximum(self._squares - self._sum * mean, 0.0))


class _Statistic:
    """One statistic: the samples of each client, and the moments `merged` over all clients except outliers."""

    def __init__(self, name: str, length: int) -> None:
        self._name = name
        self._clients: OrderedDict[str, _Samples] = OrderedDict()  # the least recent first
        self.restore(Moments.zeros(length))

    def restore(self, moments: Moments) -> None:
        """Restore the merged moments of all clients."""
        self.merged = moments
        self._earlier = _Samples(moments)  # merged clients, and samples of a checkpoint
        self._clients.clear()
        self.outlying: set[str] = set()
        self._limit: Float64Vector | None = None  # of the mean square
        self._has_proven_limit = False
        self._until_refresh = 0

    def add(self, client: str, moments: Moments) -> None:
        """Add samples. Raises MomentsOutOfRange; in that case the state is unchanged."""
        if moments.count < 1:
            return
        if client in self.outlying:
            moments.checked()
        else:
            self.merged = self.merged.merged(moments)
        samples = self._clients.get(client)
        if samples is None:
            self._clients[client] = _Samples(moments)
            is_due = True
        else:
            was_proven = samples.is_proven
            samples.add(moments)
            self._clients.move_to_end(client)
            is_due = samples.is_proven is not was_proven or (
                samples.pushes % CHECK_PUSHES == 0 and self._has_changed(client)
            )
        self._until_refresh -= 1
        if is_due or self._until_refresh <= 0:
            self._refresh()

    def _refresh(self) -> None:
        """Compare the clients. If the set of outliers changes, merge all samples again."""
        self._until_refresh = max(REFRESH, _PUSHES_OF_EACH * len(self._clients))
        if len(self._clients) > COMPARED_CLIENTS:
            client, samples = self._clients.popitem(last=False)
            if client not in self.outlying:
                self._earlier.add(samples.moments)
            self.outlying.discard(client)
        if len(self._clients) < JUDGES:
            return
        proven = [samples for samples in self._clients.values() if samples.is_proven]
        self._has_proven_limit = len(proven) >= JUDGES
        judges = proven if self._has_proven_limit else self._clients.values()
        squares = np.median([samples.mean_square for samples in judges], axis=0)
        self._limit = OUTLYING**2 * np.maximum(squares, 1.0)
        outlying = {client for client, samples in self._parts() if self._is_outlier(client, samples)}
        if outlying == self.outlying:
            return
        self._log(outlying - self.outlying, f"are excluded: more than {OUTLYING:g} times as large as other clients'")
        self._log(self.outlying - outlying, "are included again")
        self.outlying = outlying
        self.merged = _sum(samples.moments for client, samples in self._parts() if client not in outlying)

    def _has_changed(self, client: str) -> bool:
        """Return whether a client has crossed its limit since the last comparison."""
        return self._is_outlier(client, self._clients[client]) is not (client in self.outlying)

    def _is_outlier(self, client: str, samples: _Samples) -> bool:
        if self._limit is None or (samples.is_proven and not self._has_proven_limit):
            return client in self.outlying
        return bool((samples.mean_square > self._limit).any())

    def _parts(self) -> Iterable[tuple[str, _Samples]]:
        if self._earlier.count:
            yield _EARLIER, self._earlier
        yield from self._clients.items()

    def _log(self, clients: Iterable[str], what: str) -> None:
        names = (client if client == _EARLIER else f"samples of {client or 'unnamed workers'}" for client in clients)
        for each in sorted(names):
            _log.warning("merged statistic %s: %s %s", self._name, each, what)


def _sum(parts: Iterable[Moments]) -> Moments:
    """Return the moments of all samples. Parts that cannot be merged with the others are dropped."""
    merged, *others = parts
    for moments in others:
        with contextlib.suppress(MomentsOutOfRange):
            merged = merged.merged(moments)
    return merged


def _usable(name: str, moments: Moments) -> Moments:
    try:
        return moments.checked()
    except MomentsOutOfRange as why:
        _log.warning("the checkpoint's statistic %s is unusable and starts empty: %s", name, why)
        return Moments.zeros(moments.size)
