"""Copies of a table's state at one moment, made piece by piece while the table is in use."""

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
"""Approximate size of a piece, and so the memory that a copy needs in addition to its head."""
_LOCKED_BYTES = 2 * 2**20
"""Bytes that are copied at a time under the table's lock: inserts and samples wait for milliseconds."""
_PAUSE = 0.001
"""Seconds between two of these copies, in which other threads get the lock."""

Columns = Mapping[str, npt.NDArray[Any]]
NO_SLOTS: Slots = np.zeros(0, np.int64)


class TableCopy:
    """A copy of a table's content at the time of creation, which happens under the table's lock.

    keys: uint64 [n] of all items, oldest first.
    slots: int64 [n], the slots of these items.
    columns: [capacity, ...] by name; a row does not change while its slot has the same item.
    head: the small arrays of the state.

    If an item is evicted before its piece is copied, it is incomplete. A frame is incomplete if another one was written
    to its slot. `Table.restore` drops incomplete items and frames. A table can have only one copy at a time.
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
        """Yield pieces of about `size` bytes for `Table.restore`: columns of items first, then frames."""
        width = sum(column.dtype.itemsize * math.prod(column.shape[1:]) for column in self._columns.values())
        for begin, end in _ranges(len(self._keys), width, size):
            yield self._items_piece(begin, end, width)
        if self._frames:
            width = self._frames.frame_bytes
            for begin, end in _ranges(len(self._frame_slots), width, size):
                yield self._frames_piece(self._frames, begin, end)

    def head(self) -> State:
        """Return the small arrays, and which items and frames are complete. Call it after all pieces."""
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
                self._whole[here] = self._items.exist(self._keys[here])
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
    """Return an array with mapped pages. Mapping takes longer than copying, and must not happen under the lock."""
    return np.full(shape, 0, dtype)


def _ranges(count: int, width: int, size: int) -> Iterator[tuple[int, int]]:
    """Divide the range from 0 to `count` into ranges of about `size` bytes; an element has `width` bytes."""
    step = max(1, size // max(1, width))
    for begin in range(0, count, step):
        yield begin, min(begin + step, count)


def checked_slots(numbers: npt.NDArray[Any], limit: int, count: int | None = None) -> Slots:
    """Return slots int64 [n] of a state.

    Raises ValueError if a slot is not below `limit` or occurs twice, or if `count` is given and is not n.
    """
    slots = numbers.astype(np.int64)
    if count is not None and len(slots) != count:
        raise ValueError(f"the state must have {count} slots, not {len(slots)}")
    if len(slots) and (slots.min() < 0 or slots.max() >= limit or np.bincount(slots).max() > 1):
        raise ValueError(f"the slots of the state must be unique and below {limit}")
    return slots


def piece_range(named: npt.NDArray[Any], begin: int, end: int) -> slice:
    """Return the range of a piece. Raises ValueError unless it begins at `begin` and ends at or before `end`."""
    first, last = (int(number) for number in named)
    if not begin == first <= last <= end:
        raise ValueError(f"a piece of the state has range {first} to {last}, but {begin} to {end} are missing")
    return slice(first, last)


_LOW = 2**64 - 1


def generator_state(generator: np.random.Generator) -> npt.NDArray[np.uint64]:
    """Return the state of a PCG64 generator, uint64 [6]."""
    whole: Any = generator.bit_generator.state
    state, increment = whole["state"]["state"], whole["state"]["inc"]
    numbers = (state >> 64, state & _LOW, increment >> 64, increment & _LOW, whole["has_uint32"], whole["uinteger"])
    return np.array(numbers, np.uint64)


def generator_from_state(state: npt.NDArray[np.uint64]) -> np.random.Generator:
    """Return a generator with the given state, uint64 [6]."""
    high, low, increment_high, increment_low, has_uint32, uinteger = (int(number) for number in state)
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": increment_high << 64 | increment_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return np.random.Generator(bits)
