"""Random values of a space, and values outside it, as numpy arrays and as arrays of `rlx_pb2`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.rlx import Box, Discrete, ElementarySpace, MultiDiscrete, Space, rlx_pb2
from relaax.rlx.wire.arrays import DTYPES

Array = npt.NDArray[Any]

_SAFE = 2.0**53  # float64, the type of bounds, holds every integer up to this one


def wire_array(array: Array) -> rlx_pb2.Array:
    """Return an array as a Protobuf object."""
    numbers = {dtype: number for number, dtype in DTYPES.items()}
    little = array.dtype.newbyteorder("<")
    data = array.astype(little).tobytes()
    return rlx_pb2.Array(dtype=numbers[little], shape=array.shape, data=data)  # type: ignore[arg-type]


def random_leaves(space: Space, environments: int, random: np.random.Generator) -> list[Array]:
    """Return leaves of a random value for each environment."""
    return [_random_leaf(element, (environments, *element.shape), random) for element in space.elements()]


def _random_leaf(element: ElementarySpace, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    if isinstance(element, Discrete):
        return np.asarray(element.start + random.integers(0, element.n, shape), np.int64)
    if isinstance(element, MultiDiscrete):
        return np.asarray(random.integers(0, element.nvec, shape), np.int64)
    if not isinstance(element, Box):
        return random.integers(0, 2, shape).astype(element.dtype)
    low, high = np.clip(element.low, -_SAFE, None), np.clip(element.high, None, _SAFE)
    low = np.where(element.low == -np.inf, np.minimum(high, 1.0) - 2.0, low)
    high = np.where(element.high == np.inf, np.maximum(low, -1.0) + 2.0, high)
    values = low + (high - low) * random.random(shape)
    if element.dtype.kind != "f":
        values = np.clip(np.rint(values), np.ceil(low), np.floor(high))
    return values.astype(element.dtype)


def with_illegal_value(space: Space, leaves: list[Array]) -> list[Array] | None:
    """Return `leaves` with one element outside the space; None if the space contains every value of its dtypes."""
    for index, element in enumerate(space.elements()):
        value = _illegal_value(element)
        if value is not None:
            changed = leaves[index].copy()
            if changed.dtype == np.bool_:
                changed = changed.view(np.uint8)
            changed.reshape(-1)[0] = value
            changed = changed.view(leaves[index].dtype)
            return [*leaves[:index], changed, *leaves[index + 1 :]]
    return None


def _illegal_value(element: ElementarySpace) -> float | int | None:
    """Return a value that element 0 of the leaf must not have; None if there is no such value."""
    if isinstance(element, Discrete):
        return element.start + element.n if element.start + element.n < 2**63 else None
    if isinstance(element, MultiDiscrete):
        return int(element.nvec[0]) if element.nvec[0] < 2**63 - 1 else None
    if not isinstance(element, Box) or element.dtype == np.bool_:
        return 2
    if element.dtype.kind == "f":
        return float("nan")
    low, high = (int(np.broadcast_to(bound, element.shape).reshape(-1)[0]) for bound in (element.low, element.high))
    info = np.iinfo(element.dtype)
    if high < info.max:
        return high + 1
    return low - 1 if low > info.min else None


def with_wrong_dtype(leaves: list[Array]) -> list[Array]:
    """Return the leaves with another dtype for the first leaf."""
    return [leaves[0].astype(np.float64 if leaves[0].dtype != np.float64 else np.float32), *leaves[1:]]
