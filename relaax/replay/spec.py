"""Declarations of replay tables: fields, capacity, memory, and limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from relaax.replay.table.limiter import RateLimiter


def leaf_count(capacity: int) -> int:
    """Return the number of leaves of a tree with `capacity` slots: a power of two.

    Raises ValueError if `capacity` is below 1.
    """
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1, not {capacity}")
    return 1 << (capacity - 1).bit_length()


Frames = npt.NDArray[np.uint8]
"""Single frames, uint8 [F, h, w, c]."""
DEMONSTRATION = "demonstration"
"""The field, bool without a shape, of items that keep a priority of at least `TableSpec.demonstration_priority`."""
Remover = Literal["fifo", "lowest_priority", "inverse_priority"]
"""The rule that chooses the item to evict from a full table (see `TableSpec`)."""
MAX_DEMONSTRATION_PRIORITY = 1e30
MAX_CAPACITY = 2**31 - 2
"""Largest capacity of a table: slots are stored as int32."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an item.

    dtype: the name of a numpy dtype of booleans, integers or floats, such as "float32".
    shape: the shape of a sampled value.
    frames: 0, or H for a stack of H single frames. A stack has dtype uint8 and shape [h, w, c·H], with the oldest frame
        first along the last axis.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    frames: int = 0

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind not in "biuf" or np.dtype(self.dtype).itemsize > 8:
            raise ValueError(
                f"field dtype {self.dtype!r} is unsupported: use booleans, integers or floats of at most 64 bits"
            )
        if any(size < 1 for size in self.shape):
            raise ValueError(f"field shape {self.shape} is empty: every size must be at least 1")
        if self.frames < 0:
            raise ValueError(
                f"frames of a field must be at least 0, not {self.frames}; 0 means that the field is not a stack"
            )


def inserted_form(field: Field) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of a field's value in an insert. For a stack of H frames it is H frame numbers."""
    if field.frames:
        return (field.frames,), np.dtype(np.int64)
    return field.shape, np.dtype(field.dtype)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """The specification of a table. Raises ValueError if it is invalid.

    capacity: the maximum number of items.
    sampler: "uniform", or "prioritized": in proportion to priority ** alpha (Schaul et al. 2016).
    alpha: from 0 to 1; ignored by a uniform sampler.
    remover: the item to evict if the table is full: "fifo" evicts the oldest item, "lowest_priority" the item with the
        lowest priority. If several items have the lowest priority, the oldest of them is evicted. "inverse_priority"
        evicts an item with a probability proportional to priority ** remover_exponent (Horgan et al. 2018, appendix D,
        for Ape-X DPG).
    remover_exponent: from -1 to 0; ignored by the other removers. The default is that of Ape-X DPG.
    frame: [h, w, c] of a single frame; None if no field is a stack.
    frame_slots: the maximum number of single frames; None for one per item and a reserve. The reserve is for the last
        frames of episodes and for the frames that writers still refer to.
    demonstration_priority: the least priority of items whose field `DEMONSTRATION` is true (Hester et al. 2018 add a
        constant to theirs); 0 for none.
    """

    name: str
    fields: Mapping[str, Field]
    capacity: int
    sampler: Literal["uniform", "prioritized"] = "uniform"
    alpha: float = 0.6
    remover: Remover = "fifo"
    remover_exponent: float = -0.4
    frame: tuple[int, ...] | None = None
    frame_slots: int | None = None
    demonstration_priority: float = 0.0

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a table needs a name")
        if not self.fields:
            raise ValueError(f"table {self.name!r} has no fields; declare at least one")
        if not 1 <= self.capacity <= MAX_CAPACITY:
            raise ValueError(f"table capacity must be between 1 and {MAX_CAPACITY} items, not {self.capacity}")
        if self.sampler not in ("uniform", "prioritized"):
            raise ValueError(f"sampler must be 'uniform' or 'prioritized', not {self.sampler!r}")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be between 0 and 1, not {self.alpha}")
        if self.remover not in get_args(Remover):
            raise ValueError(f"remover must be 'fifo', 'lowest_priority' or 'inverse_priority', not {self.remover!r}")
        if not -1 <= self.remover_exponent <= 0:
            raise ValueError(f"remover_exponent must be between -1 and 0, not {self.remover_exponent}")
        self._check_demonstrations()
        self._check_frames()

    def _check_demonstrations(self) -> None:
        least = self.demonstration_priority
        if not 0 <= least <= MAX_DEMONSTRATION_PRIORITY:
            raise ValueError(f"demonstration_priority must be from 0 to {MAX_DEMONSTRATION_PRIORITY:g}, not {least}")
        if least and (self.sampler != "prioritized" or self.fields.get(DEMONSTRATION) != Field("bool")):
            raise ValueError(
                f"demonstration_priority is {least}: it needs a prioritized sampler and a field {DEMONSTRATION!r} of "
                "dtype bool without a shape"
            )

    def _check_frames(self) -> None:
        if self.frame is None:
            if self.stacked or self.frame_slots is not None:
                raise ValueError(
                    f"table {self.name!r} has stacks of frames: set `frame` to the shape of a single frame"
                )
            return
        if not self.stacked:
            raise ValueError(f"table {self.name!r} sets `frame`, but no field is a stack: remove `frame`")
        if len(self.frame) != 3 or any(size < 1 for size in self.frame):
            raise ValueError(f"frame must be [h, w, c], not {self.frame}; write [h, w] as [h, w, 1]")
        height, width, channels = self.frame
        for name, field in self.stacked.items():
            shape = (height, width, channels * field.frames)
            if field.shape != shape or np.dtype(field.dtype) != np.uint8:
                raise ValueError(
                    f"{name!r} is a stack of {field.frames} frames of shape {self.frame}: "
                    f"its shape must be {shape} and its dtype uint8, not {field.shape} and {field.dtype}"
                )
        if not 1 <= self.frame_capacity <= MAX_CAPACITY:
            raise ValueError(f"frame_slots must be between 1 and {MAX_CAPACITY}, not {self.frame_capacity}")

    @property
    def stacked(self) -> dict[str, Field]:
        """The fields that are stacks of frames, by name."""
        return {name: field for name, field in self.fields.items() if field.frames}

    @property
    def plain(self) -> dict[str, Field]:
        """The fields that are not stacks, by name."""
        return {name: field for name, field in self.fields.items() if not field.frames}

    @property
    def frame_capacity(self) -> int:
        """The maximum number of single frames; 0 if no field is a stack."""
        if self.frame is None:
            return 0
        return self.capacity + self.capacity // 32 + 1024 if self.frame_slots is None else self.frame_slots

    def bytes(self) -> int:
        """Return the memory of a full table in bytes, without the records of its writers."""
        item = 8 + 4  # the key, and an entry in the list of free slots
        item += sum(np.dtype(field.dtype).itemsize * math.prod(field.shape) for field in self.plain.values())
        item += 4 * sum(field.frames for field in self.stacked.values())
        trees = {"fifo": 2, "inverse_priority": 3, "lowest_priority": 4}[self.remover]
        total = self.capacity * item + 2 * 4 * (self.capacity + 1) + trees * 16 * leaf_count(self.capacity)
        if self.frame is not None:
            pixels = math.prod(self.frame)
            total += (self.frame_capacity + 1) * (pixels + 4) + self.frame_capacity * 4
        return total

    def to_text(self) -> str:
        """Return the specification as text.

        Checkpoints contain it, and a table restores only a state with the same text.
        """
        fields = ", ".join(
            f"{name}: {np.dtype(field.dtype).name} {list(field.shape)} {field.frames}"
            for name, field in sorted(self.fields.items())
        )
        remover = f"{self.remover} {self.remover_exponent}" if self.remover == "inverse_priority" else self.remover
        least = f"demonstrations {self.demonstration_priority}, " if self.demonstration_priority else ""
        return (
            f"{self.name}, {self.capacity} items, {self.sampler}, alpha {self.alpha}, {remover}, {least}"
            f"{self.frame_capacity} frames of {self.frame}: {fields}"
        )


@dataclass(frozen=True, slots=True)
class TableDeclaration:
    """The declaration of a table and its limiter (see `RateLimiter`), over all shards. Raises ValueError if invalid.

    samples_per_insert: target ratio of sampled to inserted items; None if inserts and samples do not wait for each
        other.
    min_size: number of items that must be inserted before the first sample.
    error_buffer: number of samples by which inserts or samples of a shard may run ahead of this ratio. None for a tenth
        of the shard's `min_size` x `samples_per_insert`, but at least 1,000 x max(1, `samples_per_insert`).
    inserts_wait: whether inserts wait for samples. If not, items may be sampled less often than `samples_per_insert`.
    """

    spec: TableSpec
    samples_per_insert: float | None = None
    min_size: int = 1
    error_buffer: float | None = None
    inserts_wait: bool = True

    def __post_init__(self) -> None:
        if self.min_size > self.spec.capacity:
            raise ValueError(
                f"min_size {self.min_size} of table {self.spec.name!r} is larger than its capacity {self.spec.capacity}"
            )
        self.limiter()

    def spec_of_shard(self, shards: int) -> TableSpec:
        """Return the specification of one of `shards` shards: its part of the items and frames, rounded up."""
        slots = self.spec.frame_slots
        return replace(
            self.spec,
            capacity=math.ceil(self.spec.capacity / shards),
            frame_slots=None if slots is None else math.ceil(slots / shards),
        )

    def limiter(self, shards: int = 1) -> RateLimiter:
        """Return the limiter of one of `shards` shards.

        A given buffer and the minimum of the default one are not divided by `shards`: a request to one of several
        shards can be as large as a request to a single one.
        """
        min_size = math.ceil(self.min_size / shards)
        if self.samples_per_insert is None:
            return RateLimiter(None, min_size)
        buffer = self.error_buffer
        if buffer is None:
            buffer = max(0.1 * min_size * self.samples_per_insert, 1_000 * max(1.0, self.samples_per_insert))
        return RateLimiter(self.samples_per_insert, min_size, buffer, self.inserts_wait)
