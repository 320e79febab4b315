"""Slots of a table's items: keys, order of insertion, and free slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.machine_code import NUMBER, SIGNED, ArrayType, compiled_once
from relaax.replay.table.trees import NUMBERS, SLOTS, Keys, Priorities, Slots

_LINKS = ArrayType("int32", writable=True)
_SLOTS = ArrayType("int64", writable=True)
_KEYS = ArrayType("uint64", writable=True)
_READ_KEYS = ArrayType("uint64")
_NUMBERS = ArrayType("float64", writable=True)


class Items:
    """The items of a table, numbered 1, 2, 3, ... and stored in slots 0 to `capacity` - 1. Not thread-safe.

    A key is number x `capacity` + slot, so keys are unique and increase with time.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._keys = np.zeros(capacity, np.uint64)  # 0: no item
        self._free = np.arange(capacity - 1, -1, -1, dtype=np.int32)  # used as a stack
        # A doubly linked ring. The entry `capacity` is before the oldest item and after the newest.
        self._next = np.full(capacity + 1, capacity, np.int32)
        self._before = np.full(capacity + 1, capacity, np.int32)
        self.size = 0
        self.total = 0
        self._link, self._unlink, self._walk = _link(), _unlink(), _walk()
        self._look_up, self._find = _look_up(), _find()

    def add(self, count: int) -> tuple[Slots, Keys]:
        """Add items; return their slots int64 [count] and keys uint64 [count]. At least `count` slots must be free."""
        free = self._capacity - self.size
        slots = self._free[free - count : free][::-1].astype(np.int64)
        numbers = np.arange(self.total + 1, self.total + 1 + count, dtype=np.uint64)
        keys = numbers * np.uint64(self._capacity) + slots.astype(np.uint64)
        self._put(slots, keys)
        self.total += count
        return slots, keys

    def remove(self, slots: Slots) -> None:
        """Free the `slots` int64 [n], which must all have items."""
        free = self._capacity - self.size
        self._free[free : free + len(slots)] = slots
        self._unlink(self._next, self._before, slots)
        self._keys[slots] = 0
        self.size -= len(slots)

    def oldest(self, count: int) -> Slots:
        """Return the slots int64 [count] of the oldest items, oldest first. At least `count` items must exist."""
        slots = np.empty(count, np.int64)
        self._walk(self._next, slots)
        return slots

    def slots(self) -> Slots:
        """Return the slots int64 [size] of all items, oldest first."""
        return self.oldest(self.size)

    def occupied(self) -> Slots:
        """Return the slots int64 [size] of all items in ascending order."""
        return np.flatnonzero(self._keys)

    def keys(self, slots: Slots) -> Keys:
        """Return the keys uint64 [n] of the items in `slots` int64 [n]."""
        keys: Keys = self._keys[slots]
        return keys

    def keys_and_ages(self, slots: Slots) -> tuple[Keys, Slots]:
        """Return the keys uint64 [n] of the items in `slots` int64 [n], and their ages int64 [n].

        The age of an item is the number of items that were inserted after it.
        """
        keys, ages = np.empty(len(slots), np.uint64), np.empty(len(slots), np.int64)
        self._look_up(self._keys, self._capacity, self.total, slots, keys, ages)
        return keys, ages

    def find(self, keys: Keys, numbers: Priorities) -> tuple[Slots, Keys, Priorities]:
        """Return the slots int64 [m], keys uint64 [m] and numbers float64 [m] of the m items that still exist.

        keys: uint64 [n]. numbers: float64 [n], one for each key.
        """
        slots, found, kept = np.empty(len(keys), np.int64), np.empty(len(keys), np.uint64), np.empty(len(keys))
        count = self._find(self._keys, self._capacity, keys, numbers, slots, found, kept)
        return slots[:count], found[:count], kept[:count]

    def exist(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return whether the items with `keys` uint64 [n] still exist, bool [n]."""
        exist: npt.NDArray[np.bool_] = self._keys[(keys % np.uint64(self._capacity)).astype(np.int64)] == keys
        return exist

    def free_slots(self) -> npt.NDArray[np.int32]:
        """Return the free slots int32 [capacity - size], in the order that `restore` needs."""
        free: npt.NDArray[np.int32] = self._free[: self._capacity - self.size].copy()
        return free

    def restore(self, keys: Keys, free: npt.NDArray[np.int32], total: int) -> None:
        """Add the items with `keys` uint64 [n], oldest first, to an empty table. `free`: the result of `free_slots`."""
        self._free[: len(free)] = free
        self._put((keys % np.uint64(self._capacity)).astype(np.int64), keys)
        self.total = total

    def _put(self, slots: Slots, keys: Keys) -> None:
        self._link(self._next, self._before, slots)
        self._keys[slots] = keys
        self.size += len(slots)


@compiled_once(_LINKS, _LINKS, SLOTS)
def _link(following: Any, before: Any, slots: Any) -> None:
    end = len(following) - 1
    for i in range(len(slots)):
        newest = before[end]
        following[newest] = slots[i]
        before[slots[i]] = newest
        following[slots[i]] = end
        before[end] = slots[i]


@compiled_once(_LINKS, _LINKS, SLOTS)
def _unlink(following: Any, before: Any, slots: Any) -> None:
    for i in range(len(slots)):
        following[before[slots[i]]] = following[slots[i]]
        before[following[slots[i]]] = before[slots[i]]


@compiled_once(_LINKS, _SLOTS)
def _walk(following: Any, slots: Any) -> None:
    slot = len(following) - 1
    for i in range(len(slots)):
        slot = np.int64(following[slot])
        slots[i] = slot


@compiled_once(_READ_KEYS, NUMBER, SIGNED, SLOTS, _KEYS, _SLOTS)
def _look_up(keys: Any, capacity: Any, total: Any, slots: Any, found: Any, ages: Any) -> None:
    for i in range(len(slots)):
        found[i] = keys[slots[i]]
        ages[i] = total - np.int64(found[i] // capacity)


@compiled_once(_READ_KEYS, NUMBER, _READ_KEYS, NUMBERS, _SLOTS, _KEYS, _NUMBERS, returns=SIGNED)
def _find(keys: Any, capacity: Any, wanted: Any, numbers: Any, slots: Any, found: Any, kept: Any) -> Any:
    count = 0
    for i in range(len(wanted)):
        slot = np.int64(wanted[i] % capacity)
        if wanted[i] > 0 and keys[slot] == wanted[i]:
            slots[count] = slot
            found[count] = wanted[i]
            kept[count] = numbers[i]
            count += 1
    return count
