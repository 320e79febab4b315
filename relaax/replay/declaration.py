"""Declare a table and how often it is sampled."""

from __future__ import annotations

import math
from dataclasses import dataclass

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

    def limiter(self, shards: int = 1) -> RateLimiter:
        """Return the limiter of one of so many shards."""
        if self.samples_per_insert is None:
            return RateLimiter(None, math.ceil(self.min_size / shards))
        buffer = self.error_buffer
        if buffer is None:
            buffer = max(0.1 * self.min_size * self.samples_per_insert, 1_000 * max(1.0, self.samples_per_insert))
        return RateLimiter(self.samples_per_insert, math.ceil(self.min_size / shards), max(1.0, buffer / shards))
