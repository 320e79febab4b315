"""Keep priorities in a binary tree of sums, and find slots in proportion (Schaul et al. 2016, appendix B.2.1)."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.machine_code import Kernel, compiled, types
from relaax.replay.tree_size import leaves

Slots = npt.NDArray[np.int64]
Priorities = npt.NDArray[np.float64]

LARGEST_PRIORITY = 1e200
"""No sum of so large ones overflows."""

NODES = types.Array(types.float64, 1, "C")
"""float64 [2 L], a binary tree: node i has the children 2 i and 2 i + 1, the root is 1, slot s is L + s."""
SLOTS = types.Array(types.int64, 1, "C", readonly=True)
NUMBERS = types.Array(types.float64, 1, "C", readonly=True)
_FOUND = types.Array(types.int64, 1, "C")


class SumTree:
    """Hold float64 priorities of the slots 0 to `capacity` - 1, zero at first, and their sum.

    An inner node is always computed anew from its children, so that no error adds up. Not thread-safe.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._nodes = np.zeros(2 * leaves(capacity), np.float64)
        self._set, self._find = _set_compiled(), _find_compiled()

    @property
    def total(self) -> float:
        """Return the sum of all priorities."""
        return float(self._nodes[1])

    def set(self, slots: npt.ArrayLike, priorities: npt.ArrayLike) -> None:
        """Give `slots` [n] the `priorities` [n]; of a slot that is named twice, the last one counts.

        Raises ValueError for a slot outside the tree, and for priorities as `checked_priorities` does: then nothing
        has changed.
        """
        where = self._checked(slots)
        self._set(self._nodes, where, checked_priorities(priorities, len(where)))

    def get(self, slots: npt.ArrayLike) -> Priorities:
        """Return the priorities float64 [n] of `slots` [n]. Raises ValueError for a slot outside the tree."""
        priorities: Priorities = self._nodes[len(self._nodes) // 2 + self._checked(slots)]
        return priorities

    def find(self, values: npt.ArrayLike) -> Slots:
        """Return the slots int64 [n] in whose part of the sum the `values` [n] lie, counted from slot 0 on.

        A slot of priority zero is never returned, also where a value is the total itself, or lies on a border. Raises
        ValueError for values outside [0, total], and if the total is zero.
        """
        wanted = np.ascontiguousarray(values, np.float64).reshape(-1)
        total = self.total
        if not total > 0:
            raise ValueError("every priority is zero: there is no slot to find, draw uniformly instead")
        if not ((wanted >= 0) & (wanted <= total)).all():
            raise ValueError(f"values from 0 to the total {total} are needed, not {wanted.min()} to {wanted.max()}")
        found = np.empty(len(wanted), np.int64)
        self._find(self._nodes, wanted, found)
        return found

    def _checked(self, slots: npt.ArrayLike) -> Slots:
        where = np.ascontiguousarray(slots, np.int64).reshape(-1)
        if len(where) and not (where.min() >= 0 and where.max() < self._capacity):
            raise ValueError(f"slots are 0 to {self._capacity - 1}, not {where.min()} to {where.max()}")
        return where


def checked_priorities(priorities: npt.ArrayLike, count: int) -> Priorities:
    """Return `priorities` as float64 [count].

    Raises ValueError for another count, and for priorities that are negative, not finite, or above `LARGEST_PRIORITY`.
    """
    numbers = np.ascontiguousarray(priorities, np.float64).reshape(-1)
    if len(numbers) != count:
        raise ValueError(f"{count} priorities are needed, one each, not {len(numbers)}")
    wrong = ~((numbers >= 0) & (numbers <= LARGEST_PRIORITY))
    if wrong.any():
        raise ValueError(f"a priority is a number from 0 to {LARGEST_PRIORITY:g}, not {numbers[wrong][0]}")
    return numbers


def _set_kernel(nodes: Any, slots: Any, priorities: Any) -> None:
    first = len(nodes) // 2
    for i in range(len(slots)):
        node = first + slots[i]
        nodes[node] = priorities[i]
        while node > 1:
            node >>= 1
            total = nodes[2 * node] + nodes[2 * node + 1]
            if total == nodes[node]:
                break  # nothing above changes either
            nodes[node] = total


def _find_kernel(nodes: Any, values: Any, found: Any) -> None:
    first = len(nodes) // 2
    for i in range(len(values)):
        value = values[i]
        node = 1
        while node < first:
            node *= 2
            # A rounded sum may leave a value beyond its subtree: where the right half is empty, the left one has it.
            if not (value < nodes[node] or nodes[node + 1] == 0.0):
                value -= nodes[node]
                node += 1
        found[i] = node - first


@cache
def _set_compiled() -> Kernel:
    return compiled(_set_kernel, NODES, SLOTS, NUMBERS)


@cache
def _find_compiled() -> Kernel:
    return compiled(_find_kernel, NODES, NUMBERS, _FOUND)
