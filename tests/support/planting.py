"""Errors to plant in a copy of the tree, and the tests that must fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """A replacement of `old`, which must occur exactly once in `file`, by `new`."""

    file: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.file}: found {found} times, not once: {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Planted:
    """A planted error, and tests of which at least one must fail."""

    name: str
    what: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


def planted(name: str, what: str, edits: Sequence[tuple[str, str, str]], *tests: str) -> Planted:
    return Planted(name, what, tuple(Edit(*edit) for edit in edits), tests)
