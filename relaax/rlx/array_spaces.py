"""Spaces whose values are single arrays: Box, Discrete, MultiDiscrete and MultiBinary."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.rlx.value_mismatch import ValueMismatch, check_shape, dtype_mismatch, to_array

Leaf = npt.NDArray[np.generic]
MAX_ELEMENTS = 2**31 - 1  # in one value of an elementary space


class Space:
    """An immutable set of values. Spaces with the same values are equal and have equal hashes."""

    __slots__ = ()

    def elements(self) -> Iterator[ElementarySpace]:
        """Return the elementary spaces, one for each leaf, in the order of the wire."""
        raise NotImplementedError

    def paths(self) -> Iterator[str]:
        """Return the path to each leaf of a value, in the order of `elements`: "", "[0]", "['camera'][1]", ..."""
        raise NotImplementedError

    def flatten(self, value: Any) -> list[Leaf]:
        """Return the leaves of one value, or of a batch of values. Leading axes are kept.

        Integers are converted to the space's dtype if no value changes. If that is a float dtype, all numbers are
        converted, which may round them.
        Raises ValueError if the structure, a shape or a dtype of the value does not fit the space.
        """
        raise NotImplementedError

    def unflatten(self, leaves: Sequence[Leaf]) -> Any:
        """Return the value that has these leaves. Raises ValueError if there are too few or too many leaves."""
        values = iter(leaves)
        result = self._from_leaves(values)
        if next(values, None) is not None:
            raise ValueError(f"too many leaves for {self}")
        return result

    def _from_leaves(self, leaves: Iterator[Leaf]) -> Any:
        raise NotImplementedError

    def _key(self) -> tuple[object, ...]:
        """Return the data that equality and hash compare."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def __repr__(self) -> str:
        return str(self)


class ElementarySpace(Space):
    """A space whose values are single arrays."""

    __slots__ = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of a value."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value, without the environment axis."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Size of one value."""
        return math.prod(self.shape) * self.dtype.itemsize

    def elements(self) -> Iterator[ElementarySpace]:
        """Return this space, whose value is one leaf."""
        yield self

    def paths(self) -> Iterator[str]:
        """Return one empty path: the value is the leaf."""
        yield ""

    def flatten(self, value: Any) -> list[Leaf]:
        """Return one leaf, the value as an array of this dtype. Raises ValueError if the value does not fit."""
        array = _convert(to_array(value), self)
        check_shape(array, self.shape)
        return [array]

    def _from_leaves(self, leaves: Iterator[Leaf]) -> Any:
        leaf = next(leaves, None)
        if leaf is None:
            raise ValueError(f"too few leaves for {self}")
        return leaf


class Box(ElementarySpace):
    """Arrays of one dtype and shape, each element between `low` and `high`.

    `low`, `high`: numbers, or arrays that broadcast to `shape`; infinite where there is no bound. They are stored as
    float64, rounded to a value of `dtype`. For an integer dtype they are also clipped to its range.
    `shape`: by default, the shape to which `low` and `high` broadcast.
    Raises ValueError if a bound is NaN or low exceeds high.
    """

    __slots__ = ("_dtype", "_high", "_low", "_shape")

    def __init__(
        self,
        low: npt.ArrayLike = -math.inf,
        high: npt.ArrayLike = math.inf,
        shape: Sequence[int] | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self._dtype: np.dtype[Any] = np.dtype(dtype).newbyteorder("=")
        if self._dtype.kind not in "biuf" or self._dtype.itemsize > 8:
            raise ValueError(f"a Box cannot have dtype {self._dtype}")
        lows, highs = _round_bound(low, self._dtype, np.ceil), _round_bound(high, self._dtype, np.floor)
        self._shape = _to_shape(np.broadcast_shapes(lows.shape, highs.shape) if shape is None else shape)
        for name, bound in (("low", lows), ("high", highs)):
            try:
                np.broadcast_to(bound, self._shape)
            except ValueError:
                raise ValueError(
                    f"{name} of shape {list(bound.shape)} does not broadcast to {list(self._shape)}"
                ) from None
        if not (lows <= highs).all() or (lows == np.inf).any() or (highs == -np.inf).any():
            raise ValueError("every low of a Box must be a number no greater than its high")
        self._low, self._high = _compact(lows, self._shape), _compact(highs, self._shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of a value."""
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return self._shape

    @property
    def low(self) -> npt.NDArray[np.float64]:
        """Lower bounds, read-only, with the shape of the space."""
        return np.broadcast_to(self._low, self._shape)

    @property
    def high(self) -> npt.NDArray[np.float64]:
        """Upper bounds, read-only, with the shape of the space."""
        return np.broadcast_to(self._high, self._shape)

    @property
    def compact_bounds(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """`low` and `high`, each of shape [] if all its elements are equal."""
        return self._low, self._high

    def _key(self) -> tuple[object, ...]:
        bounds = tuple((b.shape, b.tobytes()) for b in (self._low, self._high))
        return self._dtype, self._shape, bounds

    def __str__(self) -> str:
        text = f"{self._dtype}, {list(self._shape)}"
        if self._low.ndim == 0 and self._high.ndim == 0 and np.isfinite(self._low) and np.isfinite(self._high):
            text += f", {self._low:.6g}..{self._high:.6g}"
        return f"Box({text})"


class Discrete(ElementarySpace):
    """The integers from start to start + n - 1. Values are int64 of shape []."""

    __slots__ = ("n", "start")

    def __init__(self, n: int, start: int = 0) -> None:
        self.n, self.start = int(n), int(start)
        if self.n < 1:
            raise ValueError(f"Discrete needs at least one value, not {self.n}")
        if not -(2**63) <= self.start <= self.start + self.n - 1 < 2**63:
            raise ValueError(f"Discrete({self.n}, start={self.start}) does not fit 64 bits")

    @property
    def dtype(self) -> np.dtype[Any]:
        """int64."""
        return _INT64

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a scalar, []."""
        return ()

    def _key(self) -> tuple[object, ...]:
        return self.n, self.start

    def __str__(self) -> str:
        return f"Discrete({self.n}, start={self.start})" if self.start else f"Discrete({self.n})"


class MultiDiscrete(ElementarySpace):
    """A vector of independent choices: int64 of shape [len(nvec)], element i in [0, nvec[i])."""

    __slots__ = ("nvec",)

    def __init__(self, nvec: Sequence[int] | npt.NDArray[np.integer[Any]]) -> None:
        self.nvec: tuple[int, ...] = tuple(int(n) for n in nvec)
        if not self.nvec or not all(1 <= n < 2**63 for n in self.nvec):
            raise ValueError(f"every element of MultiDiscrete needs at least one value: {list(self.nvec[:16])}")

    @property
    def dtype(self) -> np.dtype[Any]:
        """int64."""
        return _INT64

    @property
    def shape(self) -> tuple[int, ...]:
        """[len(nvec)]."""
        return (len(self.nvec),)

    def _key(self) -> tuple[object, ...]:
        return (self.nvec,)

    def __str__(self) -> str:
        if len(self.nvec) > 16:
            return f"MultiDiscrete({len(self.nvec)} elements)"
        return f"MultiDiscrete({list(self.nvec)})"


class MultiBinary(ElementarySpace):
    """An int8 array of the given shape with elements 0 and 1. `shape`: a sequence, or the length of a vector."""

    __slots__ = ("_shape",)

    def __init__(self, shape: int | Sequence[int]) -> None:
        self._shape = _to_shape((shape,) if isinstance(shape, (int, np.integer)) else shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """int8."""
        return _INT8

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return self._shape

    def _key(self) -> tuple[object, ...]:
        return (self._shape,)

    def __str__(self) -> str:
        return f"MultiBinary({list(self._shape)})"


_INT64: np.dtype[Any] = np.dtype(np.int64)
_INT8: np.dtype[Any] = np.dtype(np.int8)


def _to_shape(shape: Sequence[int]) -> tuple[int, ...]:
    lengths = tuple(int(length) for length in shape)
    if not all(1 <= length < 2**32 for length in lengths):
        raise ValueError(f"an axis of length {min(lengths)} in shape {list(lengths)}: every axis needs 1 to 2^32 - 1")
    if math.prod(lengths) > MAX_ELEMENTS:
        raise ValueError(f"shape {list(lengths)} has more than {MAX_ELEMENTS} elements")
    return lengths


def _round_bound(value: npt.ArrayLike, dtype: np.dtype[Any], towards_inside: np.ufunc) -> npt.NDArray[np.float64]:
    """Return the bound rounded to a value of `dtype`, as float64. Adding 0.0 turns -0.0 into 0.0."""
    bound = np.asarray(value, np.float64)
    if np.isnan(bound).any():
        raise ValueError("a bound of a Box is NaN")
    if dtype.kind == "f":
        with np.errstate(over="ignore", under="ignore"):
            return bound.astype(dtype).astype(np.float64) + 0.0
    lowest, highest = (0.0, 1.0) if dtype.kind == "b" else (float(np.iinfo(dtype).min), float(np.iinfo(dtype).max))
    clipped: npt.NDArray[np.float64] = np.clip(towards_inside(bound), lowest, highest) + 0.0
    return clipped


def _compact(bound: npt.NDArray[np.float64], shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return one number if all elements are equal, else a copy of this shape that the caller cannot change."""
    flat = bound.reshape(-1)
    return np.array(flat[0]) if (flat == flat[0]).all() else np.array(np.broadcast_to(bound, shape))


def _convert(array: Leaf, space: ElementarySpace) -> Leaf:
    source, target = array.dtype, space.dtype
    if source == target:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        if source.kind == "b" or (source.kind in "iuf" and target.kind == "f"):
            return array.astype(target)
        if source.kind in "iu":
            result = array.astype(target)
            if (result == array).all():
                return result
            raise ValueMismatch("", f"holds {array[result != array][0]}, which is outside the range of {target}")
    raise ValueMismatch("", dtype_mismatch(source, target))
