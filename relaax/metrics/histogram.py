"""Quantiles of many samples, stored as bucket counts."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping

WIDTH = 1.05
"""The ratio of a bucket's bounds: quantiles are accurate to within 2.5 %."""

LOWEST, HIGHEST = -300, 500
"""The range of buckets: for milliseconds, from less than a nanosecond to a year."""

_PER_UNIT = 1.0 / math.log(WIDTH)
_LARGEST = WIDTH ** (HIGHEST + 0.5)


class Histogram:
    """Counts of positive samples by bucket: bucket b counts those from 1.05^b up to 1.05^(b + 1).

    Histograms of many workers merge by adding counts, unlike quantiles. Not thread-safe.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Add a sample; one that is not positive counts in the lowest bucket."""
        bucket = LOWEST
        if value >= _LARGEST:
            bucket = HIGHEST
        elif value > 0.0:  # comparisons cost less than calls
            bucket = math.floor(math.log(value) * _PER_UNIT)
            if bucket < LOWEST:
                bucket = LOWEST
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def merge(self, counts: Iterable[tuple[int, int]]) -> None:
        """Add the samples of another histogram, as (bucket, count)."""
        for bucket, count in counts:
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def quantile(self, share: float) -> float | None:
        """Return the value that `share` of the samples (0 to 1) do not exceed; None if there are no samples."""
        left = share * sum(self.counts.values())
        bucket = None
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                break
        return None if bucket is None else WIDTH ** (bucket + 0.5)


SHARES: Mapping[str, float] = {"p50": 0.5, "p99": 0.99}


class Quantiles:
    """A collector of histograms, which any thread adds. One writer calls `drain` to get medians and 99th percentiles.

    Names beyond the first `max_names` are dropped.
    """

    def __init__(self, max_names: int = 64) -> None:
        self._max_names = max_names
        self._histograms: dict[str, Histogram] = {}
        self._latest: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, name: str, counts: Iterable[tuple[int, int]]) -> None:
        """Add samples of `name`, as (bucket, count)."""
        with self._lock:
            if name not in self._histograms and len(self._histograms) >= self._max_names:
                return
            self._histograms.setdefault(name, Histogram()).merge(counts)

    def drain(self) -> dict[str, float]:
        """Return the quantiles of the samples since the last call, as NAME/p50 and NAME/p99."""
        with self._lock:
            histograms, self._histograms = self._histograms, {}
            values = {
                f"{name}/{suffix}": value
                for name, histogram in histograms.items()
                for suffix, share in SHARES.items()
                if (value := histogram.quantile(share)) is not None
            }
            self._latest.update(values)
            return values

    def latest(self, name: str) -> float | None:
        """Return the last value that `drain` gave for NAME/p50 or NAME/p99; None before that."""
        with self._lock:
            return self._latest.get(name)
