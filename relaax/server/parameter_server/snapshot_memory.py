"""Allocate memory for snapshots before pushes have to wait for the copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]


class SnapshotMemory:
    """Memory for copies of arrays like these, whose pages the kernel has already mapped.

    Touching fresh pages costs several times what copying costs: measured for 200 MB, 165 ms instead of 25. So it is
    made while nobody waits, and `take` is called under the lock.
    """

    def __init__(self, like: Arrays) -> None:
        self._memory = {name: np.empty(array.shape, array.dtype) for name, array in like.items()}

    def touch(self) -> None:
        """Make the kernel map the pages. Python's lock is free meanwhile."""
        for memory in self._memory.values():
            memory.fill(0)

    def take(self, arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Return read-only copies, once. Names, shapes and dtypes must be the same."""
        memory, self._memory = self._memory, {}
        for name, array in arrays.items():
            np.copyto(memory[name], array)
            memory[name].flags.writeable = False
        return memory
