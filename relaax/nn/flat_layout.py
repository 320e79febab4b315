"""One flat float32 vector, and the named arrays that it is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


class FlatLayout:
    """Where each named array stands in the flat vector: one after the other, in the order given."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.size = sum(self.sizes)

    def views(self, vector: Array) -> dict[str, Array]:
        """Return the named arrays as views of `vector`, float32 [size]. Raises ValueError if the length differs."""
        if vector.shape != (self.size,):
            raise ValueError(f"a vector of shape ({self.size},) is needed, not {vector.shape}")
        return dict(self._slices(vector))

    def _slices(self, vector: Array) -> Iterator[tuple[str, Array]]:
        start = 0
        for (name, shape), size in zip(self.shapes.items(), self.sizes, strict=True):
            yield name, vector[start : start + size].reshape(shape)
            start += size

    def join(self, arrays: Mapping[str, npt.NDArray[Any]]) -> Array:
        """Return the flat vector made of the named arrays, the reverse of `views`."""
        vector = np.empty(self.size, np.float32)
        for name, view in self.views(vector).items():
            view[...] = arrays[name]
        return vector
