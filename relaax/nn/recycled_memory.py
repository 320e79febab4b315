"""Reuse of memory for vectors and intermediate results."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

FlatVector = npt.NDArray[np.float32]
Allocator = Callable[[int], FlatVector]
"""Function that allocates a vector of a given size with undefined values, such as `own_memory`."""


def own_memory(size: int) -> FlatVector:
    """Allocate a vector in this process's own memory."""
    return np.empty(size, np.float32)


class VectorPool:
    """A pool of vectors of one length. It reuses the memory of a vector when the last reference to it is gone.

    To allocate new memory takes as long as several copies of a vector. At most `most_unused` unused vectors stay in
    the pool. Not thread-safe, but other threads may drop their references at any time.
    """

    def __init__(self, size: int, allocate: Allocator, most_unused: int = 4) -> None:
        self._size = size
        self._allocate = allocate
        self._most_unused = most_unused
        self._all: list[FlatVector] = []

    def acquire(self) -> FlatVector:
        """Return a vector without other references. Its values are undefined."""
        free = [index for index, array in enumerate(self._all) if sys.getrefcount(array) == _UNSHARED]
        for index in reversed(free[self._most_unused :]):
            del self._all[index]
        if free:
            return self._all[free[0]]
        array = self._allocate(self._size)
        self._all.append(array)
        return array

    def discard(self, array: FlatVector) -> None:
        """Remove this vector, or the vector that it is a view of, from the pool."""
        self._all = [known for known in self._all if known is not array and known is not array.base]


_UNSHARED = next(sys.getrefcount(array) for _, array in enumerate([np.empty(0)]))
"""Reference count of an array that only a list, and a loop over the list, refer to."""


class Scratch:
    """Memory for intermediate results, kept between calls. Only one result per name and width may be in use."""

    def __init__(self) -> None:
        self._memory: dict[object, FlatVector] = {}
        self._ones = np.ones(0, np.float32)

    def array(self, name: object, rows: int, width: int) -> FlatVector:
        """Return float32 [rows, width]: zeros if new, else with old values."""
        memory = self._memory.get((name, width))
        if memory is None or len(memory) < rows:
            memory = self._memory[name, width] = np.zeros((rows, width), np.float32)
        return memory if len(memory) == rows else memory[:rows]

    def ones(self, count: int) -> FlatVector:
        """Return a vector of ones. Do not write to it."""
        if len(self._ones) < count:
            self._ones = np.ones(count, np.float32)
        return self._ones[:count]
