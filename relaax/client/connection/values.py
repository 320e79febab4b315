"""Converters between the values of an environment's program and the leaves that the protocol carries."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from relaax import rlx
from relaax.rlx.value_mismatch import ValueMismatch, check_keys, check_sequence, check_shape, to_array
from relaax.rlx.wire.space_encoding import check_space

Exact = tuple[np.dtype[Any], tuple[int, ...]]
KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Tuple", "Dict")

_FLAGS = (bool, np.bool_)
_NUMERIC = "biufO"  # kinds of arrays that may hold a number; an int beyond 64 bits has dtype object


class UnsupportedSpace(ValueError):
    """A space that the protocol does not carry, because of its kind or size."""


class Values(Protocol):
    """A converter of the values of one space; see `values_of`."""

    exact: Exact | None
    """Dtype and shape of arrays that need no conversion; None if every value needs one."""

    @property
    def space(self) -> rlx.Space:
        """The space in the protocol's form."""

    def to_leaves(self, value: Any, axes: int) -> rlx.Leaves:
        """Return the leaves of a value with `axes` (0 or 1) leading axes. Raises ValueMismatch with the leaf's path."""

    def from_leaves(self, leaves: Iterator[npt.NDArray[Any]], single: bool) -> Any:
        """Return the value of the next leaves [N, ...]; without the leading axis if `single` (then N is 1)."""


def values_of(space: Any) -> Values:
    """Return the converter of a space of `relaax.rlx` or gymnasium, chosen by the name of its class or a base class.

    Raises UnsupportedSpace for a kind or a size that the protocol does not carry.
    """
    values = _converter(space)
    try:
        check_space(values.space, f"the {type(space).__name__}")
    except rlx.ProtocolError as error:
        raise UnsupportedSpace(error.message) from None
    return values


def _converter(space: Any) -> Values:
    kind = next((base.__name__ for base in type(space).__mro__ if base.__name__ in KINDS), None)
    if kind == "Tuple":
        return _Tuple([_converter(part) for part in space.spaces])
    if kind == "Dict":
        return _Dict({key: _converter(part) for key, part in space.spaces.items()})
    if kind == "Box":
        return _Array(rlx.Box(space.low, space.high, space.shape, space.dtype), space)
    if kind == "Discrete":
        return _Array(rlx.Discrete(space.n, space.start), space)
    if kind == "MultiDiscrete":
        return _Array(rlx.MultiDiscrete(np.ravel(space.nvec)), space, start=np.asarray(getattr(space, "start", 0)))
    if kind == "MultiBinary":
        return _Array(rlx.MultiBinary(space.shape), space)
    kind = "None" if space is None else f"a space of type {type(space).__name__}"
    raise UnsupportedSpace(f"{kind} is not supported; supported are {', '.join(KINDS)}")


def single_leaves(values: Values, value: Any) -> rlx.Leaves:
    """Return the leaves [1, ...] of one environment's value."""
    return [leaf[None] for leaf in values.to_leaves(value, 0)]


def copy_value(values: Values, value: Any) -> Any:
    """Return a copy of one environment's value, with the shapes and dtypes of its space. Raises ValueMismatch."""
    if type(value) is np.ndarray and values.exact == (value.dtype, value.shape):  # true for most states
        return value.copy()
    return values.from_leaves(iter(single_leaves(values, value)), True)


def fill_rows(values: Values, current: rlx.Leaves, rows: Iterable[Any]) -> rlx.Leaves:
    """Return leaves [N, ...] of one value for each environment. Where a value is None, the row of `current` is used."""
    filled = [leaf.copy() for leaf in current]
    for index, row in enumerate(rows):
        if row is not None:
            for leaf, part in zip(filled, values.to_leaves(row, 0), strict=True):
                leaf[index] = part
    return filled


class _Array:
    """The converter of values that are one array. A single value of a Discrete space is an int.

    A MultiDiscrete space of gymnasium may have any shape, dtype and start. In the protocol its values are vectors of
    int64, and each element is counted from 0.
    """

    def __init__(self, space: rlx.ElementarySpace, original: Any, start: npt.NDArray[Any] | None = None) -> None:
        self._space = space
        self._dtype = np.dtype(original.dtype)
        self._is_integer = isinstance(space, rlx.Discrete)
        shape = space.shape if start is None or isinstance(original, rlx.Space) else np.shape(original.nvec)
        self._shape = None if shape == space.shape else shape
        self._start = start if start is not None and start.any() else None
        self._axes = len(space.shape)
        self._plain = self._start is self._shape is None and self._dtype == space.dtype
        self.exact: Exact | None = (self._dtype, space.shape) if self._plain and not self._is_integer else None

    @property
    def space(self) -> rlx.Space:
        return self._space

    def to_leaves(self, value: Any, axes: int) -> rlx.Leaves:
        array = value if type(value) is np.ndarray else to_array(value)
        if (
            self._plain
            and array.dtype == self._dtype
            and array.shape[axes:] == self._space.shape
            and array.ndim == self._axes + axes
        ):
            return [array]  # the usual case
        return self._convert(array, axes)

    def _convert(self, array: npt.NDArray[Any], axes: int) -> rlx.Leaves:
        array = to_array(array)
        check_shape(array, self._space.shape if self._shape is None else self._shape, axes)
        if self._start is not None:
            array = array - self._start
        if self._shape is not None:
            array = array.reshape(*array.shape[:axes], *self._space.shape)
        return self._space.flatten(array)

    def from_leaves(self, leaves: Iterator[npt.NDArray[Any]], single: bool) -> Any:
        leaf = next(leaves)
        if single and self._is_integer:
            return int(leaf[0])
        shape = self._space.shape if self._shape is None else self._shape
        value = np.array(leaf, self._dtype).reshape(shape if single else (len(leaf), *shape))  # a writable copy
        return value if self._start is None else value + self._start.astype(self._dtype)


class _Nested:
    exact: Exact | None = None
    _space: rlx.Space

    @property
    def space(self) -> rlx.Space:
        return self._space


class _Tuple(_Nested):
    def __init__(self, parts: Sequence[Values]) -> None:
        self._parts = tuple(parts)
        self._space = rlx.Tuple([part.space for part in parts])

    def to_leaves(self, value: Any, axes: int) -> rlx.Leaves:
        check_sequence(value, len(self._parts))
        parts = enumerate(zip(self._parts, value, strict=True))
        return [leaf for key, (part, item) in parts for leaf in _leaves_of(part, key, item, axes)]

    def from_leaves(self, leaves: Iterator[npt.NDArray[Any]], single: bool) -> Any:
        return tuple([part.from_leaves(leaves, single) for part in self._parts])


class _Dict(_Nested):
    def __init__(self, parts: Mapping[str, Values]) -> None:
        space = self._space = rlx.Dict({key: part.space for key, part in parts.items()})
        self._parts = {key: parts[key] for key in space.spaces}  # in the order of the wire

    def to_leaves(self, value: Any, axes: int) -> rlx.Leaves:
        check_keys(value, self._parts)
        return [leaf for key, part in self._parts.items() for leaf in _leaves_of(part, key, value[key], axes)]

    def from_leaves(self, leaves: Iterator[npt.NDArray[Any]], single: bool) -> Any:
        return {key: part.from_leaves(leaves, single) for key, part in self._parts.items()}


def _leaves_of(part: Values, key: str | int, value: Any, axes: int) -> rlx.Leaves:
    """Return the leaves of one part of a tuple or dict. Raises ValueMismatch with the path of the part."""
    try:
        return part.to_leaves(value, axes)
    except ValueMismatch as mismatch:
        raise mismatch.within(key) from None


def reward_of(reward: Any) -> float:
    """Return a reward, which may be an array of one number, as a float. Raises ValueError."""
    if isinstance(reward, float) and math.isfinite(reward):
        return float(reward)
    try:
        array = np.asarray(reward)
        value = float(array.reshape(())) if array.dtype.kind in _NUMERIC else math.nan
    except (TypeError, ValueError, OverflowError):  # OverflowError: an int beyond float64
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"the reward is {reprlib.repr(reward)}: it must be one finite number")
    return value


def flag_of(name: str, flag: Any) -> bool:
    """Return `terminated` or `truncated`, which may be an array of one flag, as a bool. Raises ValueError."""
    if isinstance(flag, _FLAGS):
        return bool(flag)
    try:
        array = np.asarray(flag)
        if array.dtype.kind in _NUMERIC:
            return bool(array.reshape(()))
    except ValueError:
        pass
    raise ValueError(f"{name} is {reprlib.repr(flag)}: it must be true or false")


def require_final(observation: Any, terminated: bool, truncated: bool) -> None:
    """Raise ValueError if a truncated episode has no final observation."""
    if observation is None and truncated and not terminated:
        raise ValueError(
            "the final observation of a truncated episode is None: return the last observation, because the agent's"
            " bootstrap uses its value"
        )
