"""Flat vectors as shards and optimizers use them: the interface, and the vector in the host's memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.machine_code import FLAT, READ, REAL, compiled_once
from relaax.nn.recycled_memory import Allocator, VectorPool, own_memory

FlatVector = npt.NDArray[np.float32]


def is_finite(vector: FlatVector) -> bool:
    """Return whether a gradient can be applied. Shards and workers use the same check."""
    with np.errstate(all="ignore"):
        # The sum of squares is not finite if an element is not. Elements so large that it overflows damage the slots.
        return bool(np.isfinite(np.dot(vector, vector)))


def not_finite_sentence(vector: FlatVector, start: int = 0) -> str:
    """Return a description of a vector that is not finite. `start`: the index of its first element."""
    where = np.flatnonzero(~np.isfinite(vector))
    if where.size:
        first = vector[where[0]]
        return (
            f"{where.size:,} of {vector.size:,} elements are NaN or infinite, the first is {start + where[0]} ({first})"
        )
    return f"the sum of the squares of its {vector.size:,} elements is too large for a float32"


class Vector(ABC):
    """A float32 vector of shape [size] that is updated in place. Not thread-safe."""

    @abstractmethod
    def snapshot(self) -> FlatVector:
        """Return the current values as a read-only array of shape [size] that never changes."""

    @abstractmethod
    def shared(self) -> FlatVector:
        """Return the values, read-only and valid until the next update, without a copy if possible."""

    @abstractmethod
    def assign(self, values: FlatVector) -> None:
        """Set the values, float32 of the same shape."""

    @abstractmethod
    def blended(self, other: FlatVector, share: float) -> FlatVector:
        """Return other + share · (values − other), read-only float32 [size] in memory like that of snapshots.

        `other`: read-only float32 [size]. The values are unchanged.
        """


class HostVector(Vector):
    """An array of shape [size]. A snapshot is a copy, which is reused until the values change.

    `empty` allocates memory for snapshots. The memory of a snapshot without references is used for the next one. After
    `move_to`, other processes may change the values at any time, so each snapshot is a new copy. It may mix old and
    new values.
    """

    def __init__(self, values: FlatVector, empty: Allocator = own_memory) -> None:
        self._values = np.array(values, np.float32)
        self._snapshot: FlatVector | None = None
        self._memory = VectorPool(len(self._values), empty)
        self._moved = False

    @classmethod
    def zeros(cls, size: int) -> HostVector:
        """Return a vector of zeros, shape [size]."""
        return cls(np.zeros(size, np.float32))

    def move_to(self, memory: npt.NDArray[np.float32]) -> None:
        """Move the values to other memory, float32 [size], which other processes may change."""
        np.copyto(memory, self._values)
        self._values, self._moved = memory, True

    def writable(self) -> npt.NDArray[np.float32]:
        """Return the array itself for writing."""
        self._snapshot = None
        return self._values

    def writable_with_copy(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return the array itself for writing, and the memory of the next snapshot, which the caller must fill."""
        values, memory = self.writable(), self._memory.acquire()
        self._snapshot = _read_only(memory)
        return values, memory

    def snapshot(self) -> FlatVector:
        if self._snapshot is None or self._moved:
            memory = self._memory.acquire()
            np.copyto(memory, self._values)
            self._snapshot = _read_only(memory)
        return self._snapshot

    def discard_snapshot(self, snapshot: FlatVector) -> None:
        """Do not reuse the memory of `snapshot`, because another process may still read it."""
        self._memory.discard(snapshot)

    def shared(self) -> FlatVector:
        return _read_only(self._values)

    def assign(self, values: FlatVector) -> None:
        np.copyto(self.writable(), values)

    def blended(self, other: FlatVector, share: float) -> FlatVector:
        memory = self._memory.acquire()
        _blend()(memory, other, self.shared(), np.float32(share))
        return _read_only(memory)


def _read_only(array: FlatVector) -> FlatVector:
    view: FlatVector = array.view()
    view.flags.writeable = False
    return view


@compiled_once(FLAT, READ, READ, REAL)
def _blend(blended: Any, other: Any, values: Any, share: Any) -> None:
    for i in range(len(values)):
        blended[i] = other[i] + share * (values[i] - other[i])
