"""Short text for many numbers."""

from __future__ import annotations

from collections.abc import Iterable

MAX_RANGES = 8


def ranges(numbers: Iterable[int]) -> str:
    """Format ascending numbers as ranges: 0-3, 7, 9-12. Numbers beyond `MAX_RANGES` ranges are only counted."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    said = [str(first) if first == last else f"{first}-{last}" for first, last in found[:MAX_RANGES]]
    more = sum(last - first + 1 for first, last in found[MAX_RANGES:])
    return ", ".join(said) + (f" and {more} more" if more else "")
