"""What a shard and an optimizer know of a flat vector, wherever it lies."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from relaax.nn.recycled_memory import Empty, Recycled, own_memory

FlatVector = npt.NDArray[np.float32]


def is_finite(vector: FlatVector) -> bool:
    """Return whether a vector can be applied, as shards and workers judge it."""
    with np.errstate(all="ignore"):
        # NaN and infinity survive a sum of squares; one that overflows would ruin the optimizer's slots as surely.
        return bool(np.isfinite(np.dot(vector, vector)))


def not_finite_sentence(vector: FlatVector, start: int = 0) -> str:
    """Say what is wrong with a vector that `is_finite` refuses. `start`: the index of its first element."""
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
        """Return the values now: a read-only array of shape [size] that never changes."""

    @abstractmethod
    def shared(self) -> FlatVector:
        """Return the values, read-only and valid until the next update, without a copy if possible."""

    @abstractmethod
    def assign(self, values: FlatVector) -> None:
        """Take other values, float32 of the same shape."""


class HostVector(Vector):
    """An array of shape [size]. A snapshot is a copy, one for as long as nothing changes.

    The memory of a snapshot that nobody has any more serves the next one. `empty` makes that memory. After `move`
    others may change the values too, at any time: every snapshot is then a copy of what they were while it was made.
    """

    def __init__(self, values: FlatVector, empty: Empty = own_memory) -> None:
        self._values = np.array(values, np.float32)
        self._snapshot: FlatVector | None = None
        self._memory = Recycled(len(self._values), empty)
        self._moved = False

    @classmethod
    def zeros(cls, size: int) -> HostVector:
        """Return a vector of zeros, shape [size]."""
        return cls(np.zeros(size, np.float32))

    def move(self, memory: npt.NDArray[np.float32]) -> None:
        """Let the values lie in this memory, float32 [size], from now on."""
        np.copyto(memory, self._values)
        self._values, self._moved = memory, True

    def open(self) -> npt.NDArray[np.float32]:
        """Return the array itself, to be changed."""
        self._snapshot = None
        return self._values

    def open_twice(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return the array itself, to be changed, and the next snapshot's memory, to be written completely."""
        values, memory = self.open(), self._memory.take()
        self._snapshot = _read_only(memory)
        return values, memory

    def snapshot(self) -> FlatVector:
        if self._snapshot is None or self._moved:
            memory = self._memory.take()
            np.copyto(memory, self._values)
            self._snapshot = _read_only(memory)
        return self._snapshot

    def forget(self, snapshot: FlatVector) -> None:
        """Its memory serves no other snapshot: somebody may read it of whom nothing is known any more."""
        self._memory.forget(snapshot)

    def shared(self) -> FlatVector:
        return _read_only(self._values)

    def assign(self, values: FlatVector) -> None:
        np.copyto(self.open(), values)


def _read_only(array: FlatVector) -> FlatVector:
    view: FlatVector = array.view()
    view.flags.writeable = False
    return view
