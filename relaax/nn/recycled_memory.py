"""Memory that is used again."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

FlatVector = npt.NDArray[np.float32]
Empty = Callable[[int], FlatVector]
"""Allocate a vector of so many numbers, whose values are undefined, such as `own_memory`."""


def own_memory(size: int) -> FlatVector:
    """Allocate a vector in this process's own memory."""
    return np.empty(size, np.float32)


class Recycled:
    """Reuse the memory of vectors of one length once nobody refers to them any more: fresh memory costs several copies.

    Up to `kept` unused vectors stay. Not thread-safe, except for dropping references to what was taken.
    """

    def __init__(self, size: int, empty: Empty, kept: int = 4) -> None:
        self._size = size
        self._empty = empty
        self._kept = kept
        self._all: list[FlatVector] = []

    def take(self) -> FlatVector:
        """Return a vector that nobody else refers to; its values are undefined."""
        free = [index for index, array in enumerate(self._all) if sys.getrefcount(array) == _ALONE]
        for index in reversed(free[self._kept :]):
            del self._all[index]
        if free:
            return self._all[free[0]]
        array = self._empty(self._size)
        self._all.append(array)
        return array

    def forget(self, array: FlatVector) -> None:
        """Never return this vector again, or the one that this is a view of."""
        self._all = [known for known in self._all if known is not array and known is not array.base]


_ALONE = next(sys.getrefcount(array) for _, array in enumerate([np.empty(0)]))
"""References to an array that only a list and a loop over it know, as Python counts them."""


class Scratch:
    """Memory for intermediate results, one use of a name and width at a time. Kept from call to call."""

    def __init__(self) -> None:
        self._memory: dict[object, FlatVector] = {}
        self._ones = np.ones(0, np.float32)

    def take(self, name: object, rows: int, width: int) -> FlatVector:
        """Return float32 [rows, width], zeros at first."""
        memory = self._memory.get((name, width))
        if memory is None or len(memory) < rows:
            memory = self._memory[name, width] = np.zeros((rows, width), np.float32)
        return memory if len(memory) == rows else memory[:rows]

    def ones(self, count: int) -> FlatVector:
        """Return so many ones, to be read."""
        if len(self._ones) < count:
            self._ones = np.ones(count, np.float32)
        return self._ones[:count]
