"""Storage of single frames with reference counts: stacks share their frames."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.machine_code import SIGNED, ArrayType, compiled_once
from relaax.replay.spec import Frames

FrameSlots = npt.NDArray[np.int32]

_PIXELS = ArrayType("uint8")
_STACKS = ArrayType("uint8", writable=True)
_COUNTS = ArrayType("int32", writable=True)
_SLOTS = ArrayType("int32")


class FrameStore:
    """A store of up to `capacity` frames, uint8 [h, w, c] each, with reference counts. Not thread-safe.

    A frame without references is free. The slot `zeros` always holds a frame of zeros.
    """

    def __init__(self, capacity: int, shape: tuple[int, ...]) -> None:
        self.capacity = self.zeros = capacity
        self.shape = shape
        self._frames: Frames = np.zeros((capacity + 1, *shape), np.uint8)
        self._flat = self._frames.reshape(-1)
        self._references = np.zeros(capacity + 1, np.int32)
        self._free = np.arange(capacity - 1, -1, -1, dtype=np.int32)  # used as a stack
        self.free = capacity
        self._written: npt.NDArray[np.bool_] | None = None  # slots written since `track_writes`
        self._retain, self._release, self._stack = _retain(), _release(), _stack()

    def put(self, frames: Frames) -> FrameSlots:
        """Store `frames` uint8 [n, h, w, c] with one reference each; return their slots int32 [n].

        At least n slots must be free.
        """
        slots: FrameSlots = self._free[self.free - len(frames) : self.free].copy()
        self.free -= len(frames)
        self._frames[slots] = frames
        self._references[slots] = 1
        if self._written is not None:
            self._written[slots] = True
        return slots

    def retain(self, slots: FrameSlots) -> None:
        """Add a reference for each entry of `slots` int32 [...]."""
        self._retain(self._references, np.ascontiguousarray(slots).reshape(-1))

    def release(self, slots: FrameSlots) -> None:
        """Remove a reference for each entry of `slots` int32 [...]."""
        self.free += self._release(
            self._references, self._free, self.free, self.zeros, np.ascontiguousarray(slots).reshape(-1)
        )

    def stacks(self, slots: FrameSlots, out: Frames | None = None) -> Frames:
        """Return stacks uint8 [n, h, w, c·H] of the frames in `slots` int32 [n, H], oldest first in the last axis.

        out: an optional contiguous array of the same shape, to which the stacks are written.
        """
        height, width, channels = self.shape
        count, length = slots.shape
        stacks = np.empty((count, height, width, channels * length), np.uint8) if out is None else out
        flat = np.ascontiguousarray(slots).reshape(-1)
        self._stack(self._flat, flat, length, height * width, channels, stacks.reshape(-1))
        return stacks

    @property
    def frame_bytes(self) -> int:
        """Size of a frame in bytes."""
        return math.prod(self.shape)

    def track_writes(self) -> FrameSlots:
        """Begin to track which slots are written; return the slots int32 [n] that are in use."""
        self._written = np.zeros(self.capacity + 1, np.bool_)
        return np.flatnonzero(self._references[: self.capacity]).astype(np.int32)

    def stop_tracking(self) -> None:
        """End the tracking of writes."""
        self._written = None

    def copy(self, slots: FrameSlots, out: Frames) -> npt.NDArray[np.bool_]:
        """Copy the frames in `slots` int32 [n] to `out`.

        Return for each, bool [n], whether it is unchanged since `track_writes`.
        """
        assert self._written is not None, "call `track_writes` before `copy`"
        self._frames.take(slots, axis=0, out=out, mode="clip")
        return ~self._written[slots]

    def fill(self, slots: npt.NDArray[np.int64], frames: Frames) -> None:
        """Store `frames` uint8 [n, h, w, c] in `slots` int64 [n] of an empty store; call `rebuild_free` afterwards."""
        self._frames[slots] = frames

    def rebuild_free(self) -> None:
        """Free all slots without references."""
        free = np.flatnonzero(self._references[: self.capacity] == 0)[::-1]
        self.free = len(free)
        self._free[: len(free)] = free


@compiled_once(_COUNTS, _SLOTS)
def _retain(references: Any, slots: Any) -> None:
    for i in range(len(slots)):
        references[slots[i]] += 1


@compiled_once(_COUNTS, _COUNTS, SIGNED, SIGNED, _SLOTS, returns=SIGNED)
def _release(references: Any, free: Any, count: Any, zeros: Any, slots: Any) -> Any:
    freed = 0
    for i in range(len(slots)):
        references[slots[i]] -= 1
        if references[slots[i]] == 0 and slots[i] != zeros:
            free[count + freed] = slots[i]
            freed += 1
    return freed


@compiled_once(_PIXELS, _SLOTS, SIGNED, SIGNED, SIGNED, _STACKS)
def _stack(frames: Any, slots: Any, length: Any, pixels: Any, channels: Any, stacks: Any) -> None:
    size = np.uint64(pixels * channels)
    if length == 4 and channels == 1:  # the usual stack, in one pass
        for i in range(0, len(slots), 4):
            first, second = np.uint64(slots[i]) * size, np.uint64(slots[i + 1]) * size
            third, fourth = np.uint64(slots[i + 2]) * size, np.uint64(slots[i + 3]) * size
            target = np.uint64(i) * size
            for pixel in range(size):
                at = target + np.uint64(4) * pixel
                stacks[at] = frames[first + pixel]
                stacks[at + np.uint64(1)] = frames[second + pixel]
                stacks[at + np.uint64(2)] = frames[third + pixel]
                stacks[at + np.uint64(3)] = frames[fourth + pixel]
        return
    for i in range(len(slots)):
        source = np.uint64(slots[i]) * size
        target = np.uint64((i // length) * length) * size + np.uint64((i % length) * channels)
        for pixel in range(np.uint64(pixels)):
            at = target + pixel * np.uint64(length * channels)
            for channel in range(np.uint64(channels)):
                stacks[at + channel] = frames[source + pixel * np.uint64(channels) + channel]
