"""Quantiles of very many samples, kept as counts."""

from __future__ import annotations

import math
from collections.abc import Iterable

WIDTH = 1.05
"""The ratio of a bucket's bounds: what is read from a histogram is right within 2.5 %."""

LOWEST, HIGHEST = -300, 500
"""The buckets there are: for milliseconds, from less than a nanosecond to a year."""

_PER_UNIT = 1.0 / math.log(WIDTH)
_LARGEST = WIDTH ** (HIGHEST + 0.5)


class Histogram:
    """Counts of positive samples in buckets: bucket b holds those from 1.05^b up to 1.05^(b + 1).

    Those of many workers are merged by adding counts, which no quantile of each could be. Not thread-safe.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def add(self, value: float) -> None:
        """One sample; one that is not positive counts as the smallest there is."""
        bucket = LOWEST
        if value >= _LARGEST:
            bucket = HIGHEST
        elif value > 0.0:  # comparisons, for they cost less than calls
            bucket = math.floor(math.log(value) * _PER_UNIT)
            if bucket < LOWEST:
                bucket = LOWEST
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def merge(self, counts: Iterable[tuple[int, int]]) -> None:
        """Samples of another histogram, as (bucket, count)."""
        for bucket, count in counts:
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def quantile(self, share: float) -> float | None:
        """The value that `share` of the samples (0 to 1) do not exceed; None where there are none."""
        left = share * sum(self.counts.values())
        bucket = None
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                break
        return None if bucket is None else WIDTH ** (bucket + 0.5)
