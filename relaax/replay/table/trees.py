"""Binary trees of priorities: sums for proportional draws (Schaul et al. 2016, appendix B.2.1), maxima and minima."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.machine_code import NUMBER, ArrayType, compiled_once, inlined
from relaax.replay.spec import leaf_count

Slots = npt.NDArray[np.int64]
Priorities = npt.NDArray[np.float64]

LARGEST_PRIORITY = 1e200
"""Largest priority: sums of such priorities do not overflow."""

NODES = ArrayType("float64", writable=True)
"""float64 [2 L], a binary tree: node i has the children 2 i and 2 i + 1, the root is 1, slot s is L + s."""
SLOTS = ArrayType("int64")
NUMBERS = ArrayType("float64")
_FOUND = ArrayType("int64", writable=True)


class SumTree:
    """A tree with a float64 priority for each slot 0 to `capacity` - 1, initially 0, and their sum. Not thread-safe.

    Each inner node is always computed from its children, so that rounding errors do not accumulate.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.nodes = np.zeros(2 * leaf_count(capacity), np.float64)
        """The nodes (see `NODES`)."""
        self._set, self._find, self._draw = _set(), _find(), _draw()

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self.nodes[1])

    def set(self, slots: npt.ArrayLike, priorities: npt.ArrayLike) -> None:
        """Set the `priorities` [n] of `slots` [n]. If a slot occurs twice, its last priority is used.

        Raises ValueError, without a change, for a slot outside the tree and for invalid priorities (see
        `checked_priorities`).
        """
        where = self._checked(slots)
        self._set(self.nodes, where, checked_priorities(priorities, len(where)))

    def put(self, slots: Slots, priorities: Priorities) -> None:
        """Set priorities like `set`, without checks."""
        self._set(self.nodes, slots, priorities)

    def draw(self, numbers: Priorities) -> tuple[Slots, Priorities]:
        """Return slots int64 [n] and their shares of the total float64 [n], found by `numbers` float64 [n] in [0, 1).

        The total must be above 0.
        """
        slots, shares = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.float64)
        self._draw(self.nodes, numbers, slots, shares)
        return slots, shares

    def get(self, slots: npt.ArrayLike) -> Priorities:
        """Return the priorities float64 [n] of `slots` [n]. Raises ValueError for a slot outside the tree."""
        priorities: Priorities = self.nodes[len(self.nodes) // 2 + self._checked(slots)]
        return priorities

    def find(self, values: npt.ArrayLike) -> Slots:
        """Return slots int64 [n]: for each of the `values` [n], the slot whose part of the cumulative sum contains it.

        A slot with priority 0 is never returned, not even if a value is the total or lies on a boundary. Raises
        ValueError for values outside [0, total], and if the total is 0.
        """
        wanted = np.ascontiguousarray(values, np.float64).reshape(-1)
        total = self.total
        if not total > 0:
            raise ValueError("all priorities are 0: draw uniformly instead")
        if not ((wanted >= 0) & (wanted <= total)).all():
            raise ValueError(f"values must be between 0 and the total {total}, not {wanted.min()} to {wanted.max()}")
        found = np.empty(len(wanted), np.int64)
        self._find(self.nodes, wanted, found)
        return found

    def _checked(self, slots: npt.ArrayLike) -> Slots:
        where = np.ascontiguousarray(slots, np.int64).reshape(-1)
        if len(where) and not (where.min() >= 0 and where.max() < self._capacity):
            raise ValueError(f"slots must be between 0 and {self._capacity - 1}, not {where.min()} to {where.max()}")
        return where


def checked_priorities(priorities: npt.ArrayLike, count: int) -> Priorities:
    """Return `priorities` as float64 [count].

    Raises ValueError for another count, and for priorities that are negative, not finite, or above `LARGEST_PRIORITY`.
    """
    numbers = np.ascontiguousarray(priorities, np.float64).reshape(-1)
    if len(numbers) != count:
        raise ValueError(f"number of priorities must be {count}, one per item, not {len(numbers)}")
    wrong = ~((numbers >= 0) & (numbers <= LARGEST_PRIORITY))
    if wrong.any():
        raise ValueError(f"a priority must be between 0 and {LARGEST_PRIORITY:g}, not {numbers[wrong][0]}")
    return numbers


def _put(nodes: Any, node: Any, priority: Any) -> None:
    nodes[node] = priority
    while node > 1:
        node >>= 1
        total = nodes[2 * node] + nodes[2 * node + 1]
        if total == nodes[node]:
            break  # the nodes above do not change
        nodes[node] = total


def _leaf_at(nodes: Any, value: Any) -> Any:
    first = len(nodes) // 2
    node = 1
    while node < first:
        node *= 2
        # Rounding may move a value beyond its subtree: if the right half is empty, use the left half.
        if not (value < nodes[node] or nodes[node + 1] == 0.0):
            value -= nodes[node]
            node += 1
    return node


_put, _leaf_at = inlined(_put), inlined(_leaf_at)


@compiled_once(NODES, SLOTS, NUMBERS)
def _set(nodes: Any, slots: Any, priorities: Any) -> None:
    first = len(nodes) // 2
    for i in range(len(slots)):
        _put(nodes, first + slots[i], priorities[i])


@compiled_once(NODES, NUMBERS, _FOUND)
def _find(nodes: Any, values: Any, found: Any) -> None:
    for i in range(len(values)):
        found[i] = _leaf_at(nodes, values[i]) - len(nodes) // 2


@compiled_once(NODES, NUMBERS, _FOUND, NODES)
def _draw(nodes: Any, numbers: Any, slots: Any, shares: Any) -> None:
    total = nodes[1]
    for i in range(len(numbers)):
        leaf = _leaf_at(nodes, numbers[i] * total)
        slots[i] = leaf - len(nodes) // 2
        shares[i] = nodes[leaf] / total


@compiled_once(NODES, NUMBERS, _FOUND)
def _pop_drawn(nodes: Any, numbers: Any, popped: Any) -> None:
    for i in range(len(numbers)):
        node = _leaf_at(nodes, numbers[i] * nodes[1])
        popped[i] = node - len(nodes) // 2
        _put(nodes, node, 0.0)


Keys = npt.NDArray[np.uint64]

_NO_KEY = np.uint64(np.iinfo(np.uint64).max)
_KEY_NODES = ArrayType("uint64", writable=True)
_KEYS = ArrayType("uint64")


class MaxTree:
    """A tree with a float64 priority per slot 0 to `capacity` - 1, initially 0, and their largest. Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        self._nodes = np.zeros(2 * leaf_count(capacity), np.float64)
        self._set = _set_largest()

    @property
    def largest(self) -> float:
        """The largest priority."""
        return float(self._nodes[1])

    def set(self, slots: Slots, priorities: Priorities) -> None:
        """Set the `priorities` float64 [n] of `slots` int64 [n]. They must not be negative."""
        self._set(self._nodes, slots, priorities)

    def get(self, slots: Slots) -> Priorities:
        """Return the priorities float64 [n] of `slots` int64 [n]."""
        priorities: Priorities = self._nodes[len(self._nodes) // 2 + slots]
        return priorities


class MinTree:
    """A tree that finds the oldest of the items with the lowest priority. Not thread-safe.

    The oldest item has the lowest key. The slot of an item is key mod `capacity`.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = np.uint64(capacity)
        self._priorities = np.full(2 * leaf_count(capacity), np.inf)
        self._keys = np.full(2 * leaf_count(capacity), _NO_KEY, np.uint64)
        self._set, self._pop = _set_lowest(), _pop_lowest()

    def set(self, keys: Keys, priorities: Priorities) -> None:
        """Set the `priorities` float64 [n] of the items with `keys` uint64 [n]."""
        self._set(self._priorities, self._keys, self._slots(keys), priorities, keys)

    def remove(self, keys: Keys) -> None:
        """Remove the items with `keys` uint64 [n]."""
        removed = np.full(len(keys), np.inf), np.full(len(keys), _NO_KEY, np.uint64)
        self._set(self._priorities, self._keys, self._slots(keys), *removed)

    def pop(self, count: int) -> Slots:
        """Remove the lowest items; return their slots int64 [count], lowest first. At least `count` must exist."""
        popped = np.empty(count, np.int64)
        self._pop(self._priorities, self._keys, self._capacity, popped)
        return popped

    def _slots(self, keys: Keys) -> Slots:
        slots: Slots = (keys % self._capacity).astype(np.int64)
        return slots


class InverseTree:
    """A tree that draws items in proportion to priority ** `exponent`, which is from -1 to 0. Not thread-safe.

    The slot of an item is key mod `capacity`. Weights are clamped to `LARGEST_PRIORITY`, so that items with priority 0
    are drawn before all others.
    """

    def __init__(self, capacity: int, exponent: float) -> None:
        self._capacity = np.uint64(capacity)
        self._exponent = exponent
        self._tree = SumTree(capacity)
        self._pop = _pop_drawn()

    def set(self, keys: Keys, priorities: Priorities) -> None:
        """Set the `priorities` float64 [n] of the items with `keys` uint64 [n]."""
        with np.errstate(divide="ignore"):
            weights = np.minimum(priorities**self._exponent, LARGEST_PRIORITY)
        self._tree.set(keys % self._capacity, weights)

    def remove(self, keys: Keys) -> None:
        """Remove the items with `keys` uint64 [n]."""
        self._tree.set(keys % self._capacity, np.zeros(len(keys)))

    def pop(self, numbers: Priorities) -> Slots:
        """Draw and remove one item for each of the `numbers` float64 [n], uniform in [0, 1). Return slots int64 [n].

        Items are drawn one after the other, from those that are left. At least n must exist.
        """
        popped = np.empty(len(numbers), np.int64)
        self._pop(self._tree.nodes, numbers, popped)
        return popped


@compiled_once(NODES, SLOTS, NUMBERS)
def _set_largest(nodes: Any, slots: Any, priorities: Any) -> None:
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


@compiled_once(NODES, _KEY_NODES, SLOTS, NUMBERS, _KEYS)
def _set_lowest(priorities: Any, keys: Any, slots: Any, new_priorities: Any, new_keys: Any) -> None:
    for i in range(len(slots)):
        leaf = len(keys) // 2 + slots[i]
        priorities[leaf] = new_priorities[i]
        keys[leaf] = new_keys[i]
        _rise(priorities, keys, leaf)


@compiled_once(NODES, _KEY_NODES, NUMBER, _FOUND)
def _pop_lowest(priorities: Any, keys: Any, capacity: Any, popped: Any) -> None:
    for i in range(len(popped)):
        popped[i] = np.int64(keys[1] % capacity)
        leaf = len(keys) // 2 + popped[i]
        priorities[leaf] = np.inf
        keys[leaf] = _NO_KEY
        _rise(priorities, keys, leaf)


class ItemSampler:
    """A sampler that draws slots with replacement, slot i with probability w_i / Σ w. Not thread-safe.

    The weight w_i is priority ** `alpha` (Schaul et al. 2016, equation 1), or 1 if `alpha` is None (uniform). An item
    with priority 0 has weight 0, except that with `alpha` 0 all weights are 1. Draws are independent. If each draw
    chooses one of several tables in proportion to its `total`, the tables act as one.
    """

    def __init__(self, capacity: int, alpha: float | None) -> None:
        self._alpha = alpha
        self._tree = SumTree(capacity)

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return self._tree.total

    def set(self, slots: Slots, priorities: Priorities) -> None:
        """Set the `priorities` float64 [n] of the items in `slots` int64 [n]."""
        self._tree.put(slots, np.ones(len(slots)) if self._alpha is None else priorities**self._alpha)

    def remove(self, slots: Slots) -> None:
        """Do not draw `slots` int64 [n] until they are set again."""
        self._tree.put(slots, np.zeros(len(slots)))

    def weights(self, slots: Slots) -> Priorities:
        """Return the weights float64 [n] of `slots` int64 [n]."""
        return self._tree.get(slots)

    def set_weights(self, slots: Slots, weights: Priorities) -> None:
        """Set the `weights` float64 [n] of `slots` int64 [n], as `weights` returned them."""
        self._tree.set(slots, weights)

    def draw(self, count: int, rng: np.random.Generator, occupied: Callable[[], Slots]) -> tuple[Slots, Priorities]:
        """Draw; return slots int64 [count] and the probability float64 [count] of each.

        If all weights are 0, the slots of `occupied()`, int64 [n], have equal probability.
        """
        if self.total > 0:
            return self._tree.draw(rng.random(count))
        candidates = occupied()
        return candidates[rng.integers(len(candidates), size=count)], np.full(count, 1 / len(candidates))
