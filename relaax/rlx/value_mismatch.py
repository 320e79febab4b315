"""The error for a value that is not in its space, and checks that raise it."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


class ValueMismatch(ValueError):
    """A value that is not in its space.

    `path`: the path to the wrong part, such as ['camera'][1]; empty for the whole value.
    `reason`: the predicate of the message, such as "has shape (3,), the space is (4,)".
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"observation{path} {reason}")
        self.path, self.reason = path, reason

    def within(self, key: str | int) -> ValueMismatch:
        """Return the error of the tuple or dict that has the wrong value at `key`."""
        return ValueMismatch(f"[{key!r}]{self.path}", self.reason)


def check_sequence(value: Any, length: int) -> None:
    """Raise ValueMismatch if `value` is not a tuple or list of this length."""
    expected = f"the space is a tuple of {length} values"
    if not isinstance(value, tuple | list):
        raise ValueMismatch("", f"{_is(value)}, {expected}")
    if len(value) != length:
        raise ValueMismatch("", f"has length {len(value)}, {expected}")


def check_keys(value: Any, keys: Collection[str]) -> None:
    """Raise ValueMismatch if `value` is not a mapping with exactly these keys."""
    if not isinstance(value, Mapping):
        raise ValueMismatch("", f"{_is(value)}, the space is a dict with the keys {', '.join(keys)}")
    for key in keys:
        if key not in value:
            raise ValueMismatch(f"[{key!r}]", "is missing")
    for key in value:
        if key not in keys:
            raise ValueMismatch(f"[{key!r}]", f"is not in the space, which has {', '.join(keys)}")


def to_array(value: Any) -> npt.NDArray[Any]:
    """Return a value as an array of numbers. Raises ValueMismatch if it is ragged or holds other objects."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueMismatch("", f"is a {type(value).__name__} of values of different shapes, not an array") from None
    if array.dtype.kind not in "biuf":
        if array.ndim == 0:
            raise ValueMismatch("", f"{_is(array.item())}, not an array of numbers")
        odd = next((one for one in array.flat if not isinstance(one, int | float | np.number)), array.flat[0])
        raise ValueMismatch("", f"holds {reprlib.repr(odd)}; every element must be a number")
    return array


def check_shape(array: npt.NDArray[Any], shape: tuple[int, ...], axes: int | None = None) -> None:
    """Raise ValueMismatch if the last axes of `array` are not `shape`.

    `axes`: the number of leading axes before them; None for any number.
    """
    first = array.ndim - len(shape)
    if first < 0 or array.shape[first:] != shape or (axes is not None and first != axes):
        if axes == 1 and array.shape == shape:
            raise ValueMismatch("", f"has shape {array.shape}, without the leading axis of the environments")
        found = array.shape[1:] if axes == 1 else array.shape
        raise ValueMismatch("", shape_mismatch(found, shape))


def dtype_mismatch(found: np.dtype[Any], expected: np.dtype[Any]) -> str:
    """Return the predicate of a message about a wrong dtype."""
    return f"is {found}, the space is {expected}"


def shape_mismatch(found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """Return the predicate of a message about a wrong shape."""
    return f"has shape {found}, the space is {expected}"


def _is(value: Any) -> str:
    return "is None" if value is None else f"is of type {type(value).__name__}"
