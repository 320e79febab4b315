"""Check the leaves of a space. The checks are derived once per connection, so that each message costs little.

Element types, shapes and ranges are looked at by whole arrays, never element by element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.rlx.errors import ErrorCode, ProtocolError
from relaax.rlx.messages import Mask
from relaax.rlx.spaces import Box, Discrete, ElementarySpace, Leaf, MultiBinary, MultiDiscrete, Space

ValueCheck = Callable[[Any], Any]  # [any number of environments, *shape] -> true if all elements are legal

_FEW = 64  # elements that are looked at faster one by one than by a call of numpy


@dataclass(frozen=True, slots=True)
class LeafCheck:
    """One leaf: its name, its element type, its shape with the axis N, and the legality of its elements."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    legal: ValueCheck | None
    element: ElementarySpace


class LeavesCheck:
    """All leaves of a space, for N environments.

    `bounded`: hold Box elements to their bounds (actions), instead of only to finite numbers (observations: too many
    environments leave the box that they announce).
    """

    def __init__(self, space: Space, environments: int, bounded: bool) -> None:
        self.leaves = [
            LeafCheck(path, e.dtype, (environments, *e.shape), _legality(e, bounded), e)
            for path, e in zip(space.paths(), space.elements(), strict=True)
        ]

    def check(self, field: str, leaves: Any, rows: Mask | None = None) -> None:
        """Raise ProtocolError (INVALID_VALUE) if these are not leaves of the space.

        `rows`: bool of shape [N], some element true; only there do elements matter.
        """
        if not isinstance(leaves, list | tuple) or len(leaves) != len(self.leaves):
            paths = [leaf.path for leaf in self.leaves]
            named = f": {', '.join(paths[:8])}{', ...' * (len(paths) > 8)}" if paths != [""] else ""
            raise _invalid(f"{field} {_counted(leaves)}; the space has {_number(len(paths))}{named}")
        leaf: Any  # a program may try to send anything
        for leaf, expected in zip(leaves, self.leaves, strict=True):
            if (
                not isinstance(leaf, np.ndarray)
                or (leaf.dtype is not expected.dtype and leaf.dtype != expected.dtype)  # equality takes longer
                or leaf.shape != expected.shape
            ):
                raise _invalid(f"{field}{expected.path} {_misfit(leaf, expected)}")
            legal = expected.legal
            if legal is not None and not legal(leaf if rows is None else leaf[rows]):
                raise _invalid(_illegal(field, leaf, expected, rows))


def _legality(element: ElementarySpace, bounded: bool) -> ValueCheck | None:
    if isinstance(element, Discrete):
        return _one_of(element)
    if isinstance(element, MultiDiscrete):
        return _in_range(0, np.array(element.nvec, np.uint64))
    if isinstance(element, MultiBinary) or element.dtype.kind == "b":
        return _bits
    if isinstance(element, Box):
        bounds = _within(element) if bounded else None
        if element.dtype.kind == "f":
            return is_finite if bounds is None else lambda leaf: is_finite(leaf) and bounds(leaf)
        return bounds
    return None


def is_finite(numbers: npt.NDArray[Any]) -> bool:
    """Return whether no element is NaN or infinite."""
    # One that is makes their sum so; and if the sum of finite numbers overflows, numpy has the last word.
    few = numbers.size <= _FEW and math.isfinite(sum(numbers.ravel().tolist()))
    return few or bool(np.isfinite(numbers).all())


def is_within(numbers: npt.NDArray[Any], most: float) -> bool:
    """Return whether every element is a number from -`most` to `most`, and none is NaN."""
    if numbers.size > _FEW:
        return bool(np.abs(numbers).max() <= most)  # NaN if any element is
    few: list[float] = numbers.ravel().tolist()
    return max(few) <= most and min(few) >= -most and math.isfinite(sum(few))  # which a sum with NaN is not


def _bits(leaf: Leaf) -> Any:
    return leaf.view(np.uint8).max() <= 1


def _in_range(start: int, count: Any) -> ValueCheck:
    """Return elements of int64 in [start, start + count): as unsigned numbers, one comparison does for both ends."""
    if start == 0:
        return lambda leaf: (leaf.view(np.uint64) < count).all()
    return lambda leaf: ((leaf - start).view(np.uint64) < count).all()


def _one_of(space: Discrete) -> ValueCheck:
    every, end = _in_range(space.start, np.uint64(space.n)), space.start + space.n

    def legal(leaf: Any) -> Any:
        if leaf.size > _FEW:
            return every(leaf)
        numbers = leaf.tolist()
        return min(numbers) >= space.start and max(numbers) < end

    return legal


def _within(box: Box) -> ValueCheck | None:
    low, high = box.compact_bounds
    if box.dtype.kind == "f":
        free = np.isneginf(low).all() and np.isposinf(high).all()
        low, high = low.astype(box.dtype), high.astype(box.dtype)
    else:
        whole = Box(shape=(), dtype=box.dtype)
        free = (low == whole.low).all() and (high == whole.high).all()
    return None if free else lambda leaf: (leaf >= low).all() and (leaf <= high).all()


def _illegal(field: str, leaf: Leaf, expected: LeafCheck, rows: Mask | None) -> str:
    """Return the sentence that names the first offending environment."""
    assert expected.legal is not None
    for environment in range(len(leaf)):
        one = leaf[environment : environment + 1]
        if (rows is None or rows[environment]) and not expected.legal(one):
            break
    if leaf.dtype.kind == "f" and not np.isfinite(one).all():
        what = "NaN" if np.isnan(one).any() else "an infinite number"
    else:
        what = str(_offender(one, expected.element))
    which = f" of environment {environment}" if len(leaf) > 1 else ""
    return f"{field}{expected.path}{which} holds {what}, not a value of {expected.element}"


def _offender(one: Leaf, element: ElementarySpace) -> Any:
    """Return the first number of an illegal value that makes it so."""
    numbers: Any = one.view(np.uint8) if one.dtype.kind == "b" else one
    if isinstance(element, Box):
        low, high = element.compact_bounds
        return numbers[(numbers < low) | (numbers > high)][0]
    if isinstance(element, Discrete):
        return numbers[0]
    return numbers[(numbers < 0) | (numbers >= np.array(getattr(element, "nvec", 2)))][0]


def _misfit(leaf: Any, expected: LeafCheck) -> str:
    """Return what is wrong with the type or the shape of a leaf."""
    if not isinstance(leaf, np.ndarray):
        return f"is {'None' if leaf is None else type(leaf).__name__}, no array"
    if leaf.dtype != expected.dtype:
        return f"is {leaf.dtype}, the space is {expected.dtype}"
    if leaf.shape[:1] == expected.shape[:1]:
        return f"has shape {leaf.shape[1:]}, the space is {expected.shape[1:]}"
    return f"has shape {leaf.shape}; {expected.shape} is needed, whose first axis counts the environments"


def _counted(leaves: Any) -> str:
    if not isinstance(leaves, list | tuple):
        return f"is {'None' if leaves is None else type(leaves).__name__}, no list of leaves"
    if not leaves:
        return "is missing"
    return f"has {_number(len(leaves))}"


def _number(leaves: int) -> str:
    return f"{leaves} {'leaf' if leaves == 1 else 'leaves'}"


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_VALUE, message)
