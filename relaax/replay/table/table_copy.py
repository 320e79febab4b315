"""Copy a table as it was at one moment, piece by piece, while it goes on."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.replay.table.frame_store import FrameStore
from relaax.replay.table.items import Items
from relaax.replay.table.trees import Keys, Slots
from relaax.replay.table.writers import State

PIECE_BYTES = 64 * 2**20
"""Bytes of a piece, about: the memory that a copy takes beside its head."""
_LOCKED_BYTES = 2 * 2**20
"""Bytes that are copied at a time while inserts and samples wait: milliseconds."""
_PAUSE = 0.001
"""Seconds until the next of these, in which others get the lock."""

Columns = Mapping[str, npt.NDArray[Any]]
NO_SLOTS: Slots = np.zeros(0, np.int64)


class TableCopy:
    """The content of a table when this was made, under the table's lock, and with it the small things in `head`.

    keys: uint64 [n] of all items, oldest first; slots: int64 [n]. columns: by name, [capacity, ...], which do not
    change as long as a slot has the same item. What is overwritten before its piece is copied is not whole, and items
    that need it are left out when the table is restored: they were removed meanwhile. One copy of a table at a time.
    """

    def __init__(
        self,
        lock: threading.Lock,
        items: Items,
        keys: Keys,
        slots: Slots,
        columns: Columns,
        frames: FrameStore | None,
        head: State,
    ) -> None:
        self._lock = lock
        self._items, self._keys, self._slots = items, keys, slots
        self._columns = columns
        self._frames = frames
        self._head = head
        self._frame_slots = frames.track_writes() if frames else np.zeros(0, np.int32)
        self._whole = np.zeros(len(keys), np.bool_)
        self._frames_whole = np.zeros(len(self._frame_slots), np.bool_)

    def pieces(self, size: int = PIECE_BYTES) -> Iterator[State]:
        """Yield the columns of items, and then frames, in pieces of about `size` bytes: see `Table.restore`."""
        width = sum(column.dtype.itemsize * math.prod(column.shape[1:]) for column in self._columns.values())
        for begin, end in _ranges(len(self._keys), width, size):
            yield self._items_piece(begin, end, width)
        if self._frames:
            width = self._frames.frame_bytes
            for begin, end in _ranges(len(self._frame_slots), width, size):
                yield self._frames_piece(self._frames, begin, end)

    def head(self) -> State:
        """Return the small things, and which items and frames are whole. Called after all pieces."""
        whole: dict[str, npt.NDArray[np.generic]] = {"items/whole": self._whole}
        if self._frames:
            whole |= {"frames/slots": self._frame_slots, "frames/whole": self._frames_whole}
        return {**self._head, **whole}

    def close(self) -> None:
        """End the copy."""
        if self._frames:
            with self._lock:
                self._frames.stop_tracking()

    def _items_piece(self, begin: int, end: int, width: int) -> State:
        columns = {
            name: _preallocated((end - begin, *column.shape[1:]), column.dtype)
            for name, column in self._columns.items()
        }
        for low, high in _ranges(end - begin, width, _LOCKED_BYTES):
            here = slice(begin + low, begin + high)
            with self._lock:
                for name, column in self._columns.items():
                    column.take(self._slots[here], axis=0, out=columns[name][low:high], mode="clip")
                self._whole[here] = self._items.find(self._keys[here])[1]
            time.sleep(_PAUSE)
        return {"items": np.array([begin, end], np.int64), **{f"columns/{name}": columns[name] for name in columns}}

    def _frames_piece(self, frames: FrameStore, begin: int, end: int) -> State:
        pixels = _preallocated((end - begin, *frames.shape), np.uint8)
        for low, high in _ranges(end - begin, frames.frame_bytes, _LOCKED_BYTES):
            here = slice(begin + low, begin + high)
            with self._lock:
                self._frames_whole[here] = frames.copy(self._frame_slots[here], pixels[low:high])
            time.sleep(_PAUSE)
        return {"frames": np.array([begin, end], np.int64), "pixels": pixels}


def _preallocated(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return memory whose pages are there already: to get them takes longer than to copy, and no lock is held here."""
    return np.full(shape, 0, dtype)


def _ranges(count: int, width: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges that together are 0 to `count`, of things of `width` bytes, each of about `size` bytes."""
    step = max(1, size // max(1, width))
    for begin in range(0, count, step):
        yield begin, min(begin + step, count)


def checked_slots(numbers: npt.NDArray[Any], room: int, count: int | None = None) -> Slots:
    """Return slots int64 [n] of a state. Raises ValueError for one that is not below `room`, or named twice, and if
    there are not `count`.
    """
    slots = numbers.astype(np.int64)
    if count is not None and len(slots) != count:
        raise ValueError(f"its slots are not {count}, but {len(slots)}")
    if len(slots) and (slots.min() < 0 or slots.max() >= room or np.bincount(slots).max() > 1):
        raise ValueError(f"its slots are not different ones of {room}")
    return slots


def piece_range(named: npt.NDArray[Any], begin: int, end: int) -> slice:
    """Return the range of a piece, which begins at `begin` and ends by `end`. Raises ValueError for another one."""
    first, last = (int(number) for number in named)
    if not begin == first <= last <= end:
        raise ValueError(f"a piece is of {first} to {last}, where {begin} to {end} are missing")
    return slice(first, last)


_LOW = 2**64 - 1


def generator_state(generator: np.random.Generator) -> npt.NDArray[np.uint64]:
    """Return the state of a generator over PCG64: uint64 [6]."""
    whole: Any = generator.bit_generator.state
    state, increment = whole["state"]["state"], whole["state"]["inc"]
    numbers = (state >> 64, state & _LOW, increment >> 64, increment & _LOW, whole["has_uint32"], whole["uinteger"])
    return np.array(numbers, np.uint64)


def generator_from_state(state: npt.NDArray[np.uint64]) -> np.random.Generator:
    """Return a generator that goes on from a state uint64 [6]."""
    high, low, increment_high, increment_low, has_uint32, uinteger = (int(number) for number in state)
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": increment_high << 64 | increment_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return np.random.Generator(bits)
