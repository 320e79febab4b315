"""Keep the largest and the lowest priority, in binary trees laid out as `relaax.replay.sum_tree.NODES`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.machine_code import Kernel, compiled, inlined, types
from relaax.replay.sum_tree import NODES, NUMBERS, SLOTS, Priorities, Slots
from relaax.replay.tree_size import leaves

Keys = npt.NDArray[np.uint64]

_NO_KEY = np.uint64(np.iinfo(np.uint64).max)
_KEY_NODES = types.Array(types.uint64, 1, "C")
_KEYS = types.Array(types.uint64, 1, "C", readonly=True)
_POPPED = types.Array(types.int64, 1, "C")


class MaxTree:
    """Hold float64 priorities of the slots 0 to `capacity` - 1, zero at first, and the largest. Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        self._nodes = np.zeros(2 * leaves(capacity), np.float64)
        self._set = _largest_compiled()

    @property
    def largest(self) -> float:
        """Return the largest priority."""
        return float(self._nodes[1])

    def set(self, slots: Slots, priorities: Priorities) -> None:
        """Give `slots` int64 [n] the `priorities` float64 [n], none of which is negative."""
        self._set(self._nodes, slots, priorities)

    def get(self, slots: Slots) -> Priorities:
        """Return the priorities float64 [n] of `slots` int64 [n]."""
        priorities: Priorities = self._nodes[len(self._nodes) // 2 + slots]
        return priorities


class MinTree:
    """Find the item of the lowest priority; of equal ones that of the lowest key, which is the oldest.

    A key gives its item's slot: key mod `capacity`. Not thread-safe.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = np.uint64(capacity)
        self._priorities = np.full(2 * leaves(capacity), np.inf)
        self._keys = np.full(2 * leaves(capacity), _NO_KEY, np.uint64)
        self._set, self._pop = _lowest_compiled(), _pop_compiled()

    def set(self, keys: Keys, priorities: Priorities) -> None:
        """Give the items with these `keys` uint64 [n] the `priorities` float64 [n]."""
        self._set(self._priorities, self._keys, self._slots(keys), priorities, keys)

    def remove(self, keys: Keys) -> None:
        """Forget the items with these `keys` uint64 [n]."""
        nothing = np.full(len(keys), np.inf), np.full(len(keys), _NO_KEY, np.uint64)
        self._set(self._priorities, self._keys, self._slots(keys), *nothing)

    def pop(self, count: int) -> Slots:
        """Return the slots int64 [count] of the lowest items, lowest first, and forget them. So many must be there."""
        popped = np.empty(count, np.int64)
        self._pop(self._priorities, self._keys, self._capacity, popped)
        return popped

    def _slots(self, keys: Keys) -> Slots:
        slots: Slots = (keys % self._capacity).astype(np.int64)
        return slots


def _largest_kernel(nodes: Any, slots: Any, priorities: Any) -> None:
    first = len(nodes) // 2
    for i in range(len(slots)):
        node = first + slots[i]
        nodes[node] = priorities[i]
        while node > 1:
            node >>= 1
            largest = max(nodes[2 * node], nodes[2 * node + 1])
            if largest == nodes[node]:
                break
            nodes[node] = largest


def _rise(priorities: Any, keys: Any, leaf: Any) -> None:
    node = leaf
    while node > 1:
        node >>= 1
        best, other = 2 * node, 2 * node + 1
        if priorities[other] < priorities[best] or (priorities[other] == priorities[best] and keys[other] < keys[best]):
            best = other
        priorities[node] = priorities[best]
        keys[node] = keys[best]


_rise = inlined(_rise)


def _lowest_kernel(priorities: Any, keys: Any, slots: Any, new_priorities: Any, new_keys: Any) -> None:
    for i in range(len(slots)):
        leaf = len(keys) // 2 + slots[i]
        priorities[leaf] = new_priorities[i]
        keys[leaf] = new_keys[i]
        _rise(priorities, keys, leaf)


def _pop_kernel(priorities: Any, keys: Any, capacity: Any, popped: Any) -> None:
    for i in range(len(popped)):
        popped[i] = np.int64(keys[1] % capacity)
        leaf = len(keys) // 2 + popped[i]
        priorities[leaf] = np.inf
        keys[leaf] = _NO_KEY
        _rise(priorities, keys, leaf)


@cache
def _largest_compiled() -> Kernel:
    return compiled(_largest_kernel, NODES, SLOTS, NUMBERS)


@cache
def _lowest_compiled() -> Kernel:
    return compiled(_lowest_kernel, NODES, _KEY_NODES, SLOTS, NUMBERS, _KEYS)


@cache
def _pop_compiled() -> Kernel:
    return compiled(_pop_kernel, NODES, _KEY_NODES, types.uint64, _POPPED)
