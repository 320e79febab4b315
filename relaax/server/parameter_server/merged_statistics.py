"""Merge the samples of all workers, except clients whose samples are outliers."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import numpy as np

from relaax.metrics.rate_limited_log import RateLimitedLog
from relaax.parameters.moments import MAX_STATISTIC_NAME, Float64Vector, Moments, NotUsable
from relaax.server.parameter_server.snapshot import Statistics

_log = logging.getLogger(__name__)

OUTLYING = 100.0
"""A client is an outlier if the root mean square of its samples, in one of their elements, is more than this times the
median over the clients, or than this where the median is below 1.
"""
JUDGES = 3
"""Minimum number of clients with samples: of two that differ, either may be wrong."""
COMPARED_CLIENTS = 64
"""Clients with moments of their own; beyond it, the moments of the least recent client are merged for good."""
REFRESH = 256
"""Pushes with samples after which clients are compared again."""
LOOK = 7
"""Pushes of one client between two looks at whether it has left its limit, at most."""
PENDING_NUMBERS = 2**15
"""Numbers of one client's pushes between two looks, at most: it bounds their memory."""


class MergedStatistics:
    """The moments of each client, and the merged moments of all clients except outliers. Not thread-safe.

    A client is compared by all of its samples. It counts again when its moments are within the limit again, which
    follows the other clients. Moments from a checkpoint are compared in the same way.
    """

    def __init__(self, lengths: Mapping[str, int]) -> None:
        self._statistics = {name: _Statistic(name, length, self._drop) for name, length in lengths.items()}
        self.dropped_samples = 0
        """Samples that could not be merged, in this process's life."""
        self._complain = RateLimitedLog(_log)
        self._merge_all()

    @property
    def merged(self) -> Statistics:
        """The merged samples by name. Replaced, never changed."""
        return self._merged

    @property
    def outlying_clients(self) -> int:
        """How many clients are outliers now."""
        return len(set[str]().union(*(each.outlying for each in self._statistics.values())) - {_EARLIER})

    def check(self, samples: Statistics) -> None:
        """Raise ValueError if a name is unknown or a length is another one."""
        for name, moments in samples.items():
            if name not in self._statistics:
                raise ValueError(f"there is no statistic named {name[:MAX_STATISTIC_NAME]!r}")
            size = self._merged[name].size
            if moments.size != size:
                raise ValueError(
                    f"statistic {name!r}: samples of {size} numbers cannot be merged with samples of {moments.size}"
                )

    def add(self, client: str, samples: Statistics) -> None:
        """Add samples of a client that `check` has accepted."""
        if not samples:
            return
        for name, moments in samples.items():
            statistic = self._statistics[name]
            try:
                statistic.add(client, moments)
            except NotUsable as why:  # the client may be honest: what it cannot be merged with may be another's
                self._drop(name, client, why)
                continue
            for each in statistic.news():
                _log.warning("%s", each)
        self._merge_all()

    def restore(self, statistics: Statistics) -> None:
        """Continue from merged moments. A statistic with unusable moments starts empty, and a warning is logged."""
        for name, statistic in self._statistics.items():
            statistic.restore(_usable(name, statistics[name]))
        self._merge_all()

    def _drop(self, name: str, client: str, why: NotUsable) -> None:
        self.dropped_samples += 1
        self._complain("a sample of the statistic %s is left out (%s): %s", name, client or "unnamed", why)

    def _merge_all(self) -> None:
        self._merged = MappingProxyType({name: each.merged for name, each in self._statistics.items()})


_EARLIER = "earlier samples"
_PUSHES_OF_EACH = 32  # between two comparisons, whose time grows with the clients


class _Statistic:
    """One statistic: the moments of each client, and the moments `merged` over all clients except outliers."""

    def __init__(self, name: str, length: int, drop: Callable[[str, str, NotUsable], None]) -> None:
        """`drop`: count samples that cannot be merged after all; it gets the statistic's name and the client's."""
        self._name = name
        self._drop = drop
        self.merged = Moments.zeros(length)
        self.outlying: set[str] = set()
        self._apart: OrderedDict[str, Moments] = OrderedDict()  # the longest silent first
        self._pending: dict[str, list[Moments]] = {}  # merged already, not yet among those apart
        self._look = max(1, min(LOOK, PENDING_NUMBERS // length))
        self._earlier = self.merged  # of clients that are not kept apart any more, and of earlier lives of the server
        self._limit: Float64Vector | None = None  # of the mean square
        self._until_refresh = 0
        self._news: list[str] = []

    def add(self, client: str, moments: Moments) -> None:
        """Add samples. Raises NotUsable; then nothing has changed."""
        merged = self.merged if client in self.outlying else self.merged.merged(moments)
        is_new = client not in self._apart
        if is_new:
            self._apart[client] = moments.usable()
        else:
            self._pending.setdefault(client, []).append(moments)
        self._apart.move_to_end(client)
        self.merged = merged
        self._until_refresh -= 1
        is_due = is_new or self._until_refresh <= 0
        if is_due or (len(self._pending[client]) >= self._look and self._has_changed(client)):
            self._refresh()

    def restore(self, moments: Moments) -> None:
        self.merged = self._earlier = moments
        self._apart.clear()
        self._pending.clear()
        self.outlying = set()
        self._limit = None

    def news(self) -> list[str]:
        """Return sentences about clients that became outliers, or ceased to be, since the last call."""
        news, self._news = self._news, []
        return news

    def _refresh(self) -> None:
        """Compare the clients. If the set of outliers has changed, merge all moments again."""
        self._until_refresh = max(REFRESH, _PUSHES_OF_EACH * len(self._apart))
        for client in list(self._pending):
            self._settle(client)
        if len(self._apart) > COMPARED_CLIENTS:
            client, moments = self._apart.popitem(last=False)
            if client not in self.outlying:
                self._earlier = self._earlier.merged(moments)
            self.outlying.discard(client)
        if len(self._apart) < JUDGES:
            return
        squares = np.median([_mean_square(moments) for moments in self._apart.values()], axis=0)
        self._limit = OUTLYING**2 * np.maximum(squares, 1.0)
        parts = {_EARLIER: self._earlier, **self._apart}
        outlying = {client for client, moments in parts.items() if moments.count and self._is_beyond(moments)}
        if outlying == self.outlying:
            return
        self._tell(outlying - self.outlying, f"are left out: more than {OUTLYING:g} times as large as other clients'")
        self._tell(self.outlying - outlying, "count again")
        self.outlying = outlying
        self._merge_again()

    def _has_changed(self, client: str) -> bool:
        """Return whether a client is on the other side of its limit than at the last comparison."""
        return self._is_beyond(self._settle(client)) is not (client in self.outlying)

    def _settle(self, client: str) -> Moments:
        """Add a client's pending samples to its moments, and return these."""
        own = self._apart[client]
        try:
            own = own.merged(Moments.joined(self._pending.pop(client)))
        except NotUsable as why:
            self._drop(self._name, client, why)
            self._merge_again()
        self._apart[client] = own
        return own

    def _merge_again(self) -> None:
        parts = {_EARLIER: self._earlier, **self._apart}
        self.merged = _sum(moments for client, moments in parts.items() if client not in self.outlying)

    def _is_beyond(self, moments: Moments) -> bool:
        return self._limit is not None and bool((_mean_square(moments) > self._limit).any())

    def _tell(self, clients: Iterable[str], what: str) -> None:
        whose = (client if client == _EARLIER else f"samples of {client or 'unnamed workers'}" for client in clients)
        self._news += [f"statistic {self._name}: {each} {what}" for each in sorted(whose)]


def _mean_square(moments: Moments) -> Float64Vector:
    squares: Float64Vector = moments.variance + np.square(moments.mean)
    return squares


def _sum(parts: Iterable[Moments]) -> Moments:
    """Return the moments of all samples. What cannot be merged with the rest is left out."""
    first, *others = parts
    merged = first
    for moments in others:
        try:
            merged = merged.merged(moments)
        except NotUsable:
            continue
    return merged


def _usable(name: str, moments: Moments) -> Moments:
    try:
        return moments.usable()
    except NotUsable as why:
        _log.warning("the checkpoint's statistic %s is of no use and begins anew: %s", name, why)
        return Moments.zeros(moments.size)
