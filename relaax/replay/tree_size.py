"""The size of trees over the slots of a table."""

from __future__ import annotations


def leaves(capacity: int) -> int:
    """Return how many leaves a tree for so many slots has: a power of two. Raises ValueError for less than one slot."""
    if capacity < 1:
        raise ValueError(f"a capacity of {capacity} holds nothing; 1 is the least")
    return 1 << (capacity - 1).bit_length()
