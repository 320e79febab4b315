"""Checks of leaves against their space.

The checks of a space are prepared once for each connection, so that checking a message is cheap. Large arrays are
checked with numpy; the numbers of small ones are checked in Python, which is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.rlx.errors import ErrorCode, ProtocolError
from relaax.rlx.messages import MAX_NUMBER, Mask, Parameters
from relaax.rlx.spaces import Box, Discrete, ElementarySpace, Leaf, MultiBinary, MultiDiscrete, Space
from relaax.rlx.value_mismatch import dtype_mismatch, shape_mismatch

ValueCheck = Callable[[Any], Any]  # [any number of environments, *shape] -> whether all elements are in the space

_FEW = 64  # up to this many elements, a loop in Python is faster than a call of numpy


@dataclass(frozen=True, slots=True)
class LeafCheck:
    """The expected form of one leaf. `shape` includes the axis N. `legal` checks the elements; None: all are legal."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    legal: ValueCheck | None
    element: ElementarySpace


class LeavesCheck:
    """All leaves of a space, for N environments.

    `bounded`: whether elements of a Box must be within its bounds, as those of actions must. Otherwise they must only
    be finite: many environments send observations outside their own Box.
    """

    def __init__(self, space: Space, environments: int, bounded: bool) -> None:
        self.leaves = [
            LeafCheck(path, e.dtype, (environments, *e.shape), _value_check(e, bounded), e)
            for path, e in zip(space.paths(), space.elements(), strict=True)
        ]

    def check(self, field: str, leaves: Any, rows: Mask | None = None) -> None:
        """Raise ProtocolError (INVALID_VALUE) if `leaves` are not leaves of the space.

        `rows`: bool [N]. Only the elements of these environments are checked.
        """
        is_void = rows is not None and not np.count_nonzero(rows)
        if not isinstance(leaves, list | tuple) or len(leaves) != len(self.leaves):
            paths = [leaf.path for leaf in self.leaves]
            named = f": {', '.join(paths[:8])}{', ...' * (len(paths) > 8)}" if paths != [""] else ""
            raise _invalid(
                f"{field} {_describe_leaf_count(leaves)}; the space has {_format_leaf_count(len(paths))}{named}"
            )
        leaf: Any  # a local program may pass any object
        for leaf, expected in zip(leaves, self.leaves, strict=True):
            if (
                not isinstance(leaf, np.ndarray)
                or (
                    leaf.dtype is not expected.dtype and leaf.dtype != expected.dtype
                )  # the comparison of identities is faster
                or leaf.shape != expected.shape
            ):
                raise _invalid(f"{field}{expected.path} {_describe_array_error(leaf, expected)}")
            legal = expected.legal
            if legal is not None and not is_void and not legal(leaf if rows is None else leaf[rows]):
                raise _invalid(_describe_illegal_value(field, leaf, expected, rows))


def _value_check(element: ElementarySpace, bounded: bool) -> ValueCheck | None:
    if isinstance(element, Discrete):
        return _discrete_check(element)
    if isinstance(element, MultiDiscrete):
        return _range_check(0, np.array(element.nvec, np.uint64))
    if isinstance(element, MultiBinary) or element.dtype.kind == "b":
        return _are_bits
    if isinstance(element, Box):
        bounds = _bounds_check(element) if bounded else None
        if element.dtype.kind == "f":
            return is_finite if bounds is None else lambda leaf: is_finite(leaf) and bounds(leaf)
        return bounds
    return None


def is_finite(numbers: npt.NDArray[Any]) -> bool:
    """Return whether no element is NaN or infinite."""
    # A NaN or infinite element makes the sum NaN or infinite. The sum of finite numbers may be infinite too, so then
    # numpy checks each number.
    few = numbers.size <= _FEW and math.isfinite(sum(numbers.ravel().tolist()))
    return few or bool(np.isfinite(numbers).all())


def is_within(numbers: npt.NDArray[Any], most: float) -> bool:
    """Return whether every element is a number from -`most` to `most`, and not NaN."""
    if numbers.size > _FEW:
        return bool(np.abs(numbers).max() <= most)  # the maximum is NaN if an element is NaN
    few: list[float] = numbers.ravel().tolist()
    return max(few) <= most and min(few) >= -most and math.isfinite(sum(few))  # a sum with NaN is NaN


def check_numbers(field: str, values: Parameters | None, count: int) -> None:
    """Raise ProtocolError (INVALID_VALUE) unless `values` are `count` numbers in range; None means no number."""
    found = 0 if values is None else len(values)
    if found != count:
        raise _invalid(f"{field} has {found} numbers; {count} are needed")
    if values is not None and not is_within(values, MAX_NUMBER):
        wrong = values[np.argmin(np.abs(values) <= MAX_NUMBER)]
        raise _invalid(f"{field} holds {wrong}; at most {MAX_NUMBER:g} is allowed, and not NaN")


def _are_bits(leaf: Leaf) -> Any:
    return leaf.view(np.uint8).max() <= 1


def _range_check(start: int, count: Any) -> ValueCheck:
    """Return the check of int64 in [start, start + count). One comparison of unsigned numbers checks both bounds."""
    if start == 0:
        return lambda leaf: (leaf.view(np.uint64) < count).all()
    return lambda leaf: ((leaf - start).view(np.uint64) < count).all()


def _discrete_check(space: Discrete) -> ValueCheck:
    check_many, end = _range_check(space.start, np.uint64(space.n)), space.start + space.n

    def legal(leaf: Any) -> Any:
        if leaf.size > _FEW:
            return check_many(leaf)
        numbers = leaf.tolist()
        return min(numbers) >= space.start and max(numbers) < end

    return legal


def _bounds_check(box: Box) -> ValueCheck | None:
    low, high = box.compact_bounds
    if box.dtype.kind == "f":
        is_free = np.isneginf(low).all() and np.isposinf(high).all()
        low, high = low.astype(box.dtype), high.astype(box.dtype)
    else:
        unbounded = Box(shape=(), dtype=box.dtype)
        is_free = (low == unbounded.low).all() and (high == unbounded.high).all()
    return None if is_free else lambda leaf: (leaf >= low).all() and (leaf <= high).all()


def _describe_illegal_value(field: str, leaf: Leaf, expected: LeafCheck, rows: Mask | None) -> str:
    """Return the message that names the first environment with an illegal value."""
    assert expected.legal is not None
    for environment in range(len(leaf)):
        one = leaf[environment : environment + 1]
        if (rows is None or rows[environment]) and not expected.legal(one):
            break
    if leaf.dtype.kind == "f" and not np.isfinite(one).all():
        what = "NaN" if np.isnan(one).any() else "an infinite number"
    else:
        what = str(_first_illegal_number(one, expected.element))
    which = f" of environment {environment}" if len(leaf) > 1 else ""
    return f"{field}{expected.path}{which} holds {what}, not a value of {expected.element}"


def _first_illegal_number(one: Leaf, element: ElementarySpace) -> Any:
    """Return the first number that is outside the space."""
    numbers: Any = one.view(np.uint8) if one.dtype.kind == "b" else one
    if isinstance(element, Box):
        low, high = element.compact_bounds
        return numbers[(numbers < low) | (numbers > high)][0]
    if isinstance(element, Discrete):
        return numbers[0]
    return numbers[(numbers < 0) | (numbers >= np.array(getattr(element, "nvec", 2)))][0]


def _describe_array_error(leaf: Any, expected: LeafCheck) -> str:
    """Return the error in the type or the shape of a leaf."""
    if not isinstance(leaf, np.ndarray):
        return f"is {'None' if leaf is None else type(leaf).__name__}; it must be a numpy array"
    if leaf.dtype != expected.dtype:
        return dtype_mismatch(leaf.dtype, expected.dtype)
    if leaf.shape[:1] == expected.shape[:1]:
        return shape_mismatch(leaf.shape[1:], expected.shape[1:])
    return f"has shape {leaf.shape}; {expected.shape} is needed, whose first axis counts the environments"


def _describe_leaf_count(leaves: Any) -> str:
    if not isinstance(leaves, list | tuple):
        return f"is {'None' if leaves is None else type(leaves).__name__}, not a list of leaves"
    if not leaves:
        return "is missing"
    return f"has {_format_leaf_count(len(leaves))}"


def _format_leaf_count(leaves: int) -> str:
    return f"{leaves} {'leaf' if leaves == 1 else 'leaves'}"


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_VALUE, message)
