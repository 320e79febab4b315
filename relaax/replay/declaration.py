"""Declare a table and how often it is sampled."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from relaax.replay.limiter import RateLimiter
from relaax.replay.spec import TableSpec


@dataclass(frozen=True, slots=True)
class TableDeclaration:
    """A table and its limiter (see `RateLimiter`), over all shards together. Raises ValueError for what cannot be.

    samples_per_insert: None if neither side waits for the other.
    min_size: how many items there must be before the first is sampled.
    error_buffer: samples by which one side may run ahead; None for a tenth of what `min_size` pays for, and at least
        what a few of the largest requests need.
    """

    spec: TableSpec
    samples_per_insert: float | None = None
    min_size: int = 1
    error_buffer: float | None = None

    def __post_init__(self) -> None:
        if self.min_size > self.spec.capacity:
            raise ValueError(
                f"sampling begins with {self.min_size} items, and {self.spec.name!r} holds {self.spec.capacity}"
            )
        self.limiter()

    def spec_of_shard(self, shards: int) -> TableSpec:
        """Return what one of so many shards holds: its part of the items and frames, rounded up."""
        slots = self.spec.frame_slots
        return replace(
            self.spec,
            capacity=math.ceil(self.spec.capacity / shards),
            frame_slots=None if slots is None else math.ceil(slots / shards),
        )

    def limiter(self, shards: int = 1) -> RateLimiter:
        """Return the limiter of one of so many shards. The largest requests are as large there as for one shard."""
        min_size = math.ceil(self.min_size / shards)
        if self.samples_per_insert is None:
            return RateLimiter(None, min_size)
        least = max(1.0, self.samples_per_insert)
        buffer = self.error_buffer
        if buffer is None:
            buffer = max(0.1 * min_size * self.samples_per_insert, 1_000 * least)
        elif shards > 1:
            buffer = max(buffer / shards, least)
        return RateLimiter(self.samples_per_insert, min_size, buffer)
