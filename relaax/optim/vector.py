"""What a shard and an optimizer know of a flat vector, wherever it lies."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

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
