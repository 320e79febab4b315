"""Quantiles of very many samples, stored as bucket counts."""

from __future__ import annotations

import math
from collections.abc import Iterable

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
