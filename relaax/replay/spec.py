"""Describe what a table holds, how much of it, and what memory that takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from relaax.replay.table.limiter import RateLimiter


def leaf_count(capacity: int) -> int:
    """Return how many leaf_count a tree for so many slots has: a power of two. Raises ValueError for less than one slot."""
    if capacity < 1:
        raise ValueError(f"a capacity of {capacity} holds nothing; 1 is the least")
    return 1 << (capacity - 1).bit_length()


Frames = npt.NDArray[np.uint8]
"""Single frames, uint8 [F, h, w, c]."""
MAX_CAPACITY = 2**31 - 2
"""Slots are kept as int32."""


@dataclass(frozen=True, slots=True)
class Field:
    """Describe one value of an item.

    dtype: a numpy dtype of booleans, integers or floats, by its name, such as "float32".
    shape: the value's shape, as it is sampled.
    frames: 0, or H for a stack of H single frames. Its dtype is uint8, its shape [h, w, c·H], oldest frame first along
        the last axis.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    frames: int = 0

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind not in "biuf" or np.dtype(self.dtype).itemsize > 8:
            raise ValueError(
                f"a field of {self.dtype!r} cannot be kept: booleans, integers and floats up to 64 bits can"
            )
        if any(size < 1 for size in self.shape):
            raise ValueError(f"a field of shape {self.shape} is empty; every size is 1 or more")
        if self.frames < 0:
            raise ValueError(f"a stack of {self.frames} frames is none; 0 means that a field is no stack")


def inserted_form(field: Field) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of a field's value as a writer sends it: for a stack of H frames H numbers."""
    if field.frames:
        return (field.frames,), np.dtype(np.int64)
    return field.shape, np.dtype(field.dtype)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """Describe a table. Raises ValueError for what cannot be.

    capacity: how many items it holds.
    sampler: "uniform", or "prioritized": in proportion to priority ** alpha (Schaul et al. 2016).
    alpha: from 0 to 1; without meaning for a uniform sampler.
    remover: which item goes if the table is full: "fifo", the oldest, or "lowest_priority", of equal ones the oldest.
    frame: [h, w, c] of a single frame; None if no field is a stack.
    frame_slots: how many single frames are kept; None for one an item, and some more for those that come last in an
        episode or that writers keep.
    """

    name: str
    fields: Mapping[str, Field]
    capacity: int
    sampler: Literal["uniform", "prioritized"] = "uniform"
    alpha: float = 0.6
    remover: Literal["fifo", "lowest_priority"] = "fifo"
    frame: tuple[int, ...] | None = None
    frame_slots: int | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a table needs a name")
        if not self.fields:
            raise ValueError(f"the table {self.name!r} has no fields; one is the least")
        if not 1 <= self.capacity <= MAX_CAPACITY:
            raise ValueError(f"a capacity is from 1 to {MAX_CAPACITY} items, not {self.capacity}")
        if self.sampler not in ("uniform", "prioritized"):
            raise ValueError(f"the sampler is 'uniform' or 'prioritized', not {self.sampler!r}")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha is from 0 to 1, not {self.alpha}")
        if self.remover not in ("fifo", "lowest_priority"):
            raise ValueError(f"the remover is 'fifo' or 'lowest_priority', not {self.remover!r}")
        self._check_frames()

    def _check_frames(self) -> None:
        if self.frame is None:
            if self.stacked or self.frame_slots is not None:
                raise ValueError(f"the table {self.name!r} has stacks of frames: it needs the shape of one, `frame`")
            return
        if not self.stacked:
            raise ValueError(f"the table {self.name!r} has a shape of frames, but no field is a stack; leave it out")
        if len(self.frame) != 3 or any(size < 1 for size in self.frame):
            raise ValueError(f"a frame has the shape [h, w, c], not {self.frame}; [h, w] is [h, w, 1]")
        height, width, channels = self.frame
        for name, field in self.stacked.items():
            shape = (height, width, channels * field.frames)
            if field.shape != shape or np.dtype(field.dtype) != np.uint8:
                raise ValueError(
                    f"{name!r} is a stack of {field.frames} frames of shape {self.frame}: "
                    f"its shape is {shape} and its dtype uint8, not {field.shape} and {field.dtype}"
                )
        if not 1 <= self.frame_capacity <= MAX_CAPACITY:
            raise ValueError(f"frame_slots is from 1 to {MAX_CAPACITY}, not {self.frame_capacity}")

    @property
    def stacked(self) -> dict[str, Field]:
        """Return the fields that are stacks of frames, by name."""
        return {name: field for name, field in self.fields.items() if field.frames}

    @property
    def plain(self) -> dict[str, Field]:
        """Return the fields that are no stacks, by name."""
        return {name: field for name, field in self.fields.items() if not field.frames}

    @property
    def frame_capacity(self) -> int:
        """Return how many single frames the table has room for: 0 without stacks."""
        if self.frame is None:
            return 0
        return self.capacity + self.capacity // 32 + 1024 if self.frame_slots is None else self.frame_slots

    def bytes(self) -> int:
        """Return the memory in bytes that a table takes once it is full, writers' notes aside."""
        item = 8 + 4  # its key, and a place among the free slots
        item += sum(np.dtype(field.dtype).itemsize * math.prod(field.shape) for field in self.plain.values())
        item += 4 * sum(field.frames for field in self.stacked.values())
        trees = 2 if self.remover == "fifo" else 4
        total = self.capacity * item + 2 * 4 * (self.capacity + 1) + trees * 16 * leaf_count(self.capacity)
        if self.frame is not None:
            pixels = math.prod(self.frame)
            total += (self.frame_capacity + 1) * (pixels + 4) + self.frame_capacity * 4
        return total

    def to_text(self) -> str:
        """Return everything that a state depends on, as a text to compare."""
        fields = ", ".join(
            f"{name}: {np.dtype(field.dtype).name} {list(field.shape)} {field.frames}"
            for name, field in sorted(self.fields.items())
        )
        return (
            f"{self.name}, {self.capacity} items, {self.sampler}, alpha {self.alpha}, {self.remover}, "
            f"{self.frame_capacity} frames of {self.frame}: {fields}"
        )


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
