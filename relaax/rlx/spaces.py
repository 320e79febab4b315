"""The spaces of observations and actions: gymnasium's, without gymnasium.

A *value* of a space is what a program handles: an array, an integer, a tuple or a dict of values. On the wire and in
`relaax.rlx.messages` it is a list of *leaves*, one array for each elementary space, in the order of `Space.elements()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relaax.rlx.array_spaces import Box, Discrete, ElementarySpace, Leaf, MultiBinary, MultiDiscrete, Space
from relaax.rlx.misfit import Misfit, check_keys, check_sequence

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
]


def _part(space: Space, key: str | int, value: Any) -> list[Leaf]:
    """Return the leaves of one part of a tuple or dict. Raises Misfit with the path from there."""
    try:
        return space.flatten(value)
    except Misfit as misfit:
        raise misfit.within(key) from None


class Tuple(Space):
    """An ordered list of spaces. Its leaves are those of the parts, in order."""

    __slots__ = ("spaces",)

    def __init__(self, spaces: Sequence[Space]) -> None:
        self.spaces: tuple[Space, ...] = tuple(spaces)
        if not self.spaces:
            raise ValueError("a Tuple space needs at least one part")

    def elements(self) -> Iterator[ElementarySpace]:
        """Those of the parts, in order."""
        for space in self.spaces:
            yield from space.elements()

    def paths(self) -> Iterator[str]:
        """Those of the parts, with their position."""
        for index, space in enumerate(self.spaces):
            yield from (f"[{index}]{path}" for path in space.paths())

    def flatten(self, value: Any) -> list[Leaf]:
        """Return the leaves of each part. Raises ValueError if `value` is no sequence with one value for each part."""
        check_sequence(value, len(self.spaces))
        return [leaf for key, space in enumerate(self.spaces) for leaf in _part(space, key, value[key])]

    def _take(self, leaves: Iterator[Leaf]) -> Any:
        return tuple(space._take(leaves) for space in self.spaces)

    def _key(self) -> tuple[object, ...]:
        return (self.spaces,)

    def __str__(self) -> str:
        return f"Tuple({', '.join(str(space) for space in self.spaces)})"


class Dict(Space):
    """Named spaces. Its leaves are those of the parts, in the order of the keys sorted by Unicode code point."""

    __slots__ = ("spaces",)

    def __init__(self, spaces: Mapping[str, Space]) -> None:
        if not spaces or not all(isinstance(key, str) for key in spaces):
            raise ValueError("a Dict space needs at least one part, and names that are strings")
        self.spaces: dict[str, Space] = {key: spaces[key] for key in sorted(spaces)}

    def elements(self) -> Iterator[ElementarySpace]:
        """Those of the parts, by sorted key."""
        for space in self.spaces.values():
            yield from space.elements()

    def paths(self) -> Iterator[str]:
        """Those of the parts, with their key."""
        for key, space in self.spaces.items():
            yield from (f"[{key!r}]{path}" for path in space.paths())

    def flatten(self, value: Any) -> list[Leaf]:
        """Return the leaves of each part. Raises ValueError if `value` is no mapping with exactly these keys."""
        check_keys(value, self.spaces)
        return [leaf for key, space in self.spaces.items() for leaf in _part(space, key, value[key])]

    def _take(self, leaves: Iterator[Leaf]) -> Any:
        return {key: space._take(leaves) for key, space in self.spaces.items()}

    def _key(self) -> tuple[object, ...]:
        return (tuple(self.spaces.items()),)

    def __str__(self) -> str:
        return f"Dict({', '.join(f'{key}: {space}' for key, space in self.spaces.items())})"
