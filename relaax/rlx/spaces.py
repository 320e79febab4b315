"""The spaces of observations and actions: gymnasium's, without gymnasium.

A *value* of a space is what a program handles: an array, an integer, a tuple or a dict of values. On the wire and in
`relaax.rlx.messages` it is a list of *leaves*, one array for each elementary space, in the order of `Space.elements()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relaax.rlx.array_spaces import Box, Discrete, ElementarySpace, Leaf, MultiBinary, MultiDiscrete, Space

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
        if not isinstance(value, (tuple, list)) or len(value) != len(self.spaces):
            raise ValueError(f"a tuple of {len(self.spaces)} values is needed for {self}")
        return [leaf for space, part in zip(self.spaces, value, strict=True) for leaf in space.flatten(part)]

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
        if not isinstance(value, Mapping) or value.keys() != self.spaces.keys():
            raise ValueError(f"a dict with the keys {', '.join(self.spaces)} is needed for {self}")
        return [leaf for key, space in self.spaces.items() for leaf in space.flatten(value[key])]

    def _take(self, leaves: Iterator[Leaf]) -> Any:
        return {key: space._take(leaves) for key, space in self.spaces.items()}

    def _key(self) -> tuple[object, ...]:
        return (tuple(self.spaces.items()),)

    def __str__(self) -> str:
        return f"Dict({', '.join(f'{key}: {space}' for key, space in self.spaces.items())})"
