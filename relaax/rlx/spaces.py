"""The spaces of observations and actions, which are those of gymnasium; gymnasium itself is not needed.

A *value* of a space is an array, an integer, or a tuple or dict of values. On the wire and in `relaax.rlx.messages` a
value is a list of *leaves*: one array for each elementary space, in the order of `Space.elements()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relaax.rlx.array_spaces import Box, Discrete, ElementarySpace, Leaf, MultiBinary, MultiDiscrete, Space
from relaax.rlx.value_mismatch import ValueMismatch, check_keys, check_sequence

__all__ = [
    "Box",
    "Dict",
    "Discrete",
    "ElementarySpace",
    "Leaf",
    "MultiBinary",
    "MultiDiscrete",
    "Space",
    "Tuple",
    "is_compatible",
    "without_bounds",
]


def _part(space: Space, key: str | int, value: Any) -> list[Leaf]:
    """Return the leaves of one part of a tuple or dict. Raises ValueMismatch with the path of the part."""
    try:
        return space.flatten(value)
    except ValueMismatch as mismatch:
        raise mismatch.within(key) from None


class Tuple(Space):
    """An ordered list of spaces. Its leaves are the leaves of its parts, in order."""

    __slots__ = ("spaces",)

    def __init__(self, spaces: Sequence[Space]) -> None:
        self.spaces: tuple[Space, ...] = tuple(spaces)
        if not self.spaces:
            raise ValueError("a Tuple space needs at least one part")

    def elements(self) -> Iterator[ElementarySpace]:
        """Return the elementary spaces of the parts, in order."""
        for space in self.spaces:
            yield from space.elements()

    def paths(self) -> Iterator[str]:
        """Return the paths of the parts, each with the index of its part."""
        for index, space in enumerate(self.spaces):
            yield from (f"[{index}]{path}" for path in space.paths())

    def flatten(self, value: Any) -> list[Leaf]:
        """Return the leaves of each part. Raises ValueError if `value` is not a tuple or list of their values."""
        check_sequence(value, len(self.spaces))
        return [leaf for key, space in enumerate(self.spaces) for leaf in _part(space, key, value[key])]

    def _from_leaves(self, leaves: Iterator[Leaf]) -> Any:
        return tuple(space._from_leaves(leaves) for space in self.spaces)

    def _key(self) -> tuple[object, ...]:
        return (self.spaces,)

    def __str__(self) -> str:
        return f"Tuple({', '.join(str(space) for space in self.spaces)})"


class Dict(Space):
    """Named spaces. Its leaves are the leaves of its parts, in the order of the keys by Unicode code point."""

    __slots__ = ("spaces",)

    def __init__(self, spaces: Mapping[str, Space]) -> None:
        if not spaces or not all(isinstance(key, str) for key in spaces):
            raise ValueError("a Dict space needs at least one part, and its keys must be strings")
        self.spaces: dict[str, Space] = {key: spaces[key] for key in sorted(spaces)}

    def elements(self) -> Iterator[ElementarySpace]:
        """Return the elementary spaces of the parts, by sorted key."""
        for space in self.spaces.values():
            yield from space.elements()

    def paths(self) -> Iterator[str]:
        """Return the paths of the parts, each with the key of its part."""
        for key, space in self.spaces.items():
            yield from (f"[{key!r}]{path}" for path in space.paths())

    def flatten(self, value: Any) -> list[Leaf]:
        """Return the leaves of each part. Raises ValueError if `value` is not a mapping with exactly these keys."""
        check_keys(value, self.spaces)
        return [leaf for key, space in self.spaces.items() for leaf in _part(space, key, value[key])]

    def _from_leaves(self, leaves: Iterator[Leaf]) -> Any:
        return {key: space._from_leaves(leaves) for key, space in self.spaces.items()}

    def _key(self) -> tuple[object, ...]:
        return (tuple(self.spaces.items()),)

    def __str__(self) -> str:
        return f"Dict({', '.join(f'{key}: {space}' for key, space in self.spaces.items())})"


def is_compatible(one: Space, other: Space) -> bool:
    """Return whether values of one space fit the other. Bounds are ignored, because a trained space has none."""
    return len(list(one.elements())) == len(list(other.elements())) and all(
        type(a) is type(b) and a.shape == b.shape and a.dtype == b.dtype and getattr(a, "n", 0) == getattr(b, "n", 0)
        for a, b in zip(one.elements(), other.elements(), strict=True)
    )


def without_bounds(space: Space) -> Space:
    """Return the space without the bounds of its boxes, at any depth."""
    if isinstance(space, Box):
        return Box(shape=space.shape, dtype=space.dtype)
    if isinstance(space, Tuple):
        return Tuple([without_bounds(part) for part in space.spaces])
    if isinstance(space, Dict):
        return Dict({key: without_bounds(part) for key, part in space.spaces.items()})
    return space
