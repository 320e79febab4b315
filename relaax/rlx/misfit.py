"""Values that are not of their space."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


class Misfit(ValueError):
    """A value that is not of its space.

    `path` leads to the part that is wrong, as in ['camera'][1]; empty for the whole value. `reason` follows its name in
    a sentence: "has shape (3,), the space is (4,)".
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"observation{path} {reason}")
        self.path, self.reason = path, reason

    def within(self, key: str | int) -> Misfit:
        """Return the misfit of a value that has this one as a part."""
        return Misfit(f"[{key!r}]{self.path}", self.reason)


def check_sequence(value: Any, length: int) -> None:
    """Raise Misfit unless `value` is a tuple or list of this length."""
    if not isinstance(value, tuple | list):
        raise Misfit("", f"{_is(value)}, the space is a tuple of {length} values")
    if len(value) != length:
        raise Misfit("", f"has length {len(value)}, the space is a tuple of {length} values")


def check_keys(value: Any, keys: Collection[str]) -> None:
    """Raise Misfit unless `value` is a mapping with exactly these keys."""
    if not isinstance(value, Mapping):
        raise Misfit("", f"{_is(value)}, the space is a dict with the keys {', '.join(keys)}")
    for key in keys:
        if key not in value:
            raise Misfit(f"[{key!r}]", "is missing")
    for key in value:
        if key not in keys:
            raise Misfit(f"[{key!r}]", f"is not in the space, which has {', '.join(keys)}")


def array_of(value: Any) -> npt.NDArray[Any]:
    """Return a value as an array. Raises Misfit if it has no shape, or holds anything but numbers."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise Misfit("", f"is a {type(value).__name__} of values of different shapes, no array") from None
    if array.dtype.kind not in "biuf":
        if array.ndim == 0:
            raise Misfit("", f"{_is(array.item())}, no array of numbers")
        odd = next((one for one in array.flat if not isinstance(one, int | float | np.number)), array.flat[0])
        raise Misfit("", f"holds {reprlib.repr(odd)}, which is no number")
    return array


def check_shape(array: npt.NDArray[Any], shape: tuple[int, ...], axes: int | None = None) -> None:
    """Raise Misfit unless the last axes of `array` are `shape`, after `axes` others; None for any number of them."""
    first = array.ndim - len(shape)
    if first < 0 or array.shape[first:] != shape or (axes is not None and first != axes):
        if axes == 1 and array.shape == shape:
            raise Misfit("", f"has shape {array.shape}, without the axis of the environments before it")
        found = array.shape[1:] if axes == 1 else array.shape
        raise Misfit("", f"has shape {found}, the space is {shape}")


def _is(value: Any) -> str:
    return "is None" if value is None else f"is of type {type(value).__name__}"
