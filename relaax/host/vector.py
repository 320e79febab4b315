"""A flat float32 vector in the host's memory, which compiled kernels update in place."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

from relaax.tf.vector import FlatVector, Vector

_KEPT = 4
_probe = [np.empty(0)]
_ALONE = sys.getrefcount(_probe[0])
"""References to an array that only its list knows, as Python counts them."""


class HostVector(Vector):
    """An array of shape [size]. A snapshot is a copy, one for as long as nothing changes.

    The memory of a snapshot that nobody has any more serves the next one: fresh memory costs several times what copying
    costs.
    """

    def __init__(self, values: FlatVector) -> None:
        self._values = np.array(values, np.float32)
        self._snapshot: FlatVector | None = None
        self._memory: list[FlatVector] = []

    @classmethod
    def zeros(cls, size: int) -> HostVector:
        """A vector of zeros, shape [size]."""
        return cls(np.zeros(size, np.float32))

    def open(self) -> npt.NDArray[np.float32]:
        """The array itself, to be changed."""
        self._snapshot = None
        return self._values

    def snapshot(self) -> FlatVector:
        if self._snapshot is None:
            memory = self._free()
            np.copyto(memory, self._values)
            self._snapshot = _read_only(memory)
        return self._snapshot

    def shared(self) -> FlatVector:
        return _read_only(self._values)

    def assign(self, values: FlatVector) -> None:
        np.copyto(self.open(), values)

    def _free(self) -> FlatVector:
        for index in range(len(self._memory)):
            if sys.getrefcount(self._memory[index]) == _ALONE:  # every view of it, and every view of those, counts
                return self._memory[index]
        memory = np.empty_like(self._values)
        if len(self._memory) < _KEPT:
            self._memory.append(memory)
        return memory


def _read_only(array: FlatVector) -> FlatVector:
    view: FlatVector = array.view()
    view.flags.writeable = False
    return view
