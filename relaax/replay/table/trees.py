"""Keep priorities in a binary tree of sums, and find slots in proportion (Schaul et al. 2016, appendix B.2.1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.machine_code import Kernel, compiled, inlined, types
from relaax.replay.spec import leaf_count

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
        self._nodes = np.zeros(2 * leaf_count(capacity), np.float64)
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


Keys = npt.NDArray[np.uint64]

_NO_KEY = np.uint64(np.iinfo(np.uint64).max)
_KEY_NODES = types.Array(types.uint64, 1, "C")
_KEYS = types.Array(types.uint64, 1, "C", readonly=True)
_POPPED = types.Array(types.int64, 1, "C")


class MaxTree:
    """Hold float64 priorities of the slots 0 to `capacity` - 1, zero at first, and the largest. Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        self._nodes = np.zeros(2 * leaf_count(capacity), np.float64)
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
        self._priorities = np.full(2 * leaf_count(capacity), np.inf)
        self._keys = np.full(2 * leaf_count(capacity), _NO_KEY, np.uint64)
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


class ItemSampler:
    """Draw slots with replacement, slot i with probability w_i / Σ w.

    The weight w_i is priority ** `alpha` (Schaul et al. 2016, equation 1), or 1 if `alpha` is None: uniform. Every draw
    is independent of all others, so that several tables, each drawn from as often as its `total` says, draw as one.
    Priority zero weighs nothing, except that with `alpha` 0 it weighs 1 as all others do. Not thread-safe.
    """

    def __init__(self, capacity: int, alpha: float | None) -> None:
        self._alpha = alpha
        self._tree = SumTree(capacity)

    @property
    def total(self) -> float:
        """Return the sum of all weights."""
        return self._tree.total

    def set(self, slots: Slots, priorities: Priorities) -> None:
        """Give the items in `slots` int64 [n] the `priorities` float64 [n]."""
        self.set_weights(slots, np.ones(len(slots)) if self._alpha is None else priorities**self._alpha)

    def remove(self, slots: Slots) -> None:
        """Never draw from `slots` int64 [n] again until they are set."""
        self.set_weights(slots, np.zeros(len(slots)))

    def weights(self, slots: Slots) -> Priorities:
        """Return the weights float64 [n] of `slots` int64 [n]."""
        return self._tree.get(slots)

    def set_weights(self, slots: Slots, weights: Priorities) -> None:
        """Give `slots` int64 [n] the `weights` float64 [n] that `weights` has returned before."""
        self._tree.set(slots, weights)

    def draw(self, count: int, rng: np.random.Generator, occupied: Callable[[], Slots]) -> tuple[Slots, Priorities]:
        """Return slots int64 [count] and the probability float64 [count] of each.

        If every weight is zero, all slots of `occupied()`, int64 [n], are equally probable.
        """
        total = self.total
        if total > 0:
            slots = self._tree.find(rng.random(count) * total)
            return slots, self._tree.get(slots) / total
        there = occupied()
        return there[rng.integers(len(there), size=count)], np.full(count, 1 / len(there))
