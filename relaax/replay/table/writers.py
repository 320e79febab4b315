"""State of a table's writers: the number of the last insert, and the frames that later inserts may refer to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.machine_code import SIGNED, ArrayType, compiled_once
from relaax.replay.spec import Frames, TableSpec, inserted_form
from relaax.replay.table.frame_store import FrameSlots
from relaax.replay.table.trees import SLOTS


class OutOfStep(ValueError):
    """An insert needs an earlier insert, or frames, that the table does not have. The table has not changed.

    The writer must continue with insert number `expected`, and send all frames that it refers to.
    """

    def __init__(self, sentence: str, expected: int) -> None:
        super().__init__(sentence)
        self.expected = expected


class SequenceGap(OutOfStep):
    """An earlier insert of the writer is missing."""


class FrameStoreFull(ValueError):
    """The frames that writers keep leave no capacity for new frames."""


class UnknownFrames(OutOfStep):
    """An item refers to frames that the table does not have."""


FrameNumbers = npt.NDArray[np.int64]
State = Mapping[str, npt.NDArray[np.generic]]


def no_frames() -> FrameSlots:
    """Return an empty array of frame slots."""
    return np.zeros(0, np.int32)


@dataclass(slots=True)
class Writer:
    """The state of one writer. `frames`: int32 [n], slots of its frames with numbers `first`, `first` + 1, ..."""

    sequence: int = 0
    first: int = 0
    frames: FrameSlots = field(default_factory=no_frames)

    @property
    def next_frame(self) -> int:
        """The number of the next frame."""
        return self.first + len(self.frames)

    def is_duplicate(self, sequence: int) -> bool:
        """Return whether the insert was received before. Raises SequenceGap if an earlier insert is missing."""
        if sequence < 1:
            raise ValueError(f"the sequence number of an insert must be at least 1, not {sequence}")
        if sequence > self.sequence + 1:
            raise SequenceGap(
                f"received insert {sequence}, but {self.sequence + 1} is missing; continue with that number",
                self.sequence + 1,
            )
        return sequence <= self.sequence

    def is_continued_by(self, first_frame: int, count: int) -> bool:
        """Return whether `count` frames from number `first_frame` on follow the present frames."""
        return count == 0 or first_frame == self.next_frame

    def positions(self, numbers: FrameNumbers, first_frame: int, count: int) -> FrameNumbers:
        """Return the positions int64 [...] in `frames` of the frames `numbers`, once new frames are added.

        The new frames are `count` frames from number `first_frame` on. If they do not follow the present frames, they
        replace them. The position of number -1 is -1. Raises UnknownFrames for other numbers without a frame.
        """
        follow = self.is_continued_by(first_frame, count)
        first, end = (self.first, self.next_frame + count) if follow else (first_frame, first_frame + count)
        flat = np.ascontiguousarray(numbers).reshape(-1)
        positions = np.empty(len(flat), np.int64)
        wrong = _positions()(flat, first, end, positions)
        if wrong >= 0:
            raise UnknownFrames(
                f"frame {flat[wrong]} is unknown: the writer has {end - first} frames from number {first} on; "
                "send this insert again under its number, with all frames that it refers to",
                self.sequence + 1,
            )
        return positions.reshape(numbers.shape)

    def restart_frames(self, first_frame: int) -> FrameSlots:
        """Drop all frames, and expect `first_frame` next. Return the slots of the dropped frames."""
        dropped, self.frames, self.first = self.frames, no_frames(), first_frame
        return dropped

    def drop_frames(self, keep_from: int) -> FrameSlots:
        """Drop frames with numbers below `keep_from`; return their slots."""
        count = min(max(keep_from - self.first, 0), len(self.frames))
        dropped, self.frames = self.frames[:count], self.frames[count:]
        self.first += count
        return dropped


@compiled_once(SLOTS, SIGNED, SIGNED, ArrayType("int64", writable=True), returns=SIGNED)
def _positions(numbers: Any, first: Any, end: Any, positions: Any) -> Any:
    """Write positions, and return the index of the first unknown number, or -1."""
    for i in range(len(numbers)):
        number = numbers[i]
        if number == -1:
            positions[i] = -1
        elif number < first or number >= end:
            return i
        else:
            positions[i] = number - first
    return -1


class Writers:
    """The writers of a table, by name. Not thread-safe."""

    def __init__(self) -> None:
        self._writers: dict[str, Writer] = {}
        _positions()  # so that the first insert need not wait

    @property
    def names(self) -> list[str]:
        """The names of all writers."""
        return list(self._writers)

    def __iter__(self) -> Iterator[Writer]:
        return iter(self._writers.values())

    def get(self, name: str) -> Writer:
        """Return a writer, or a new one, which is stored only by `put`."""
        return self._writers.get(name) or Writer()

    def put(self, name: str, writer: Writer) -> None:
        """Store a writer."""
        self._writers[name] = writer

    def remove(self, name: str) -> FrameSlots:
        """Remove a writer, if it exists; return the slots of its frames."""
        return self._writers.pop(name, Writer()).frames

    @property
    def frames(self) -> int:
        """Number of frames that all writers keep."""
        return sum(len(writer.frames) for writer in self)

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return arrays from which `restore` recreates the writers."""
        numbers = [(writer.sequence, writer.first, len(writer.frames)) for writer in self]
        return {
            "writers/names": np.frombuffer(json.dumps(self.names).encode(), np.uint8),
            "writers/numbers": np.array(numbers, np.int64).reshape(-1, 3),
            "writers/frames": np.concatenate([no_frames(), *(writer.frames for writer in self)]),
        }

    def restore(self, state: State, lost: npt.NDArray[np.bool_]) -> None:
        """Replace all writers by those of `state`.

        lost: bool [capacity + 1], frame slots that were not restored. Of each writer, the last frame in these slots and
            all earlier frames are dropped. If the writer refers to one of them, it gets UnknownFrames and sends it
            again.
        """
        names = json.loads(state["writers/names"].tobytes())
        numbers = state["writers/numbers"].astype(np.int64)
        parts = np.split(state["writers/frames"].astype(np.int32), np.cumsum(numbers[:, 2])[:-1]) if names else []
        self._writers = {
            name: Writer(int(sequence), int(first), frames)
            for name, (sequence, first, _), frames in zip(names, numbers, parts, strict=True)
        }
        for writer in self:
            gone = np.flatnonzero(lost[writer.frames])
            if len(gone):
                writer.drop_frames(writer.first + int(gone[-1]) + 1)


def checked_columns(spec: TableSpec, columns: Mapping[str, npt.ArrayLike]) -> tuple[int, dict[str, npt.NDArray[Any]]]:
    """Return the number of items B and their columns: [B, *shape], or int64 [B, H] for a stack of H frames.

    Raises ValueError if fields, dtypes or shapes do not match the specification, and if B exceeds the capacity.
    """
    if columns.keys() != spec.fields.keys():
        raise ValueError(
            f"items of table {spec.name!r} must have the fields {sorted(spec.fields)}, not {sorted(columns)}"
        )
    checked = {name: np.asarray(column) for name, column in columns.items()}
    counts = {len(column) if column.ndim else -1 for column in checked.values()}
    count = counts.pop()
    for name, kind in spec.fields.items():
        shape, dtype = inserted_form(kind)
        column = checked[name]
        if counts or column.shape != (count, *shape) or column.dtype != dtype:
            raise ValueError(
                f"{name!r} must be {dtype} {['B', *shape]}, with the same B for all fields, "
                f"not {column.dtype} {[*column.shape]}"
            )
    if count > spec.capacity:
        raise ValueError(
            f"an insert of {count} items exceeds the capacity {spec.capacity} of table {spec.name!r}; send fewer"
        )
    return count, checked


def checked_frames(spec: TableSpec, frames: npt.ArrayLike | None, first_frame: int) -> Frames:
    """Return new frames uint8 [F, h, w, c]; F is 0 if `frames` is None.

    Raises ValueError for another dtype or shape, for a negative `first_frame`, and if the table has no frames.
    """
    if frames is None:
        return np.zeros((0, *(spec.frame or ())), np.uint8)
    if spec.frame is None:
        raise ValueError(f"table {spec.name!r} has no stacks of frames: omit `frames`")
    new = np.asarray(frames)
    if new.dtype != np.uint8 or new.ndim != 4 or new.shape[1:] != spec.frame:
        raise ValueError(f"frames must be uint8 {['F', *spec.frame]}, not {new.dtype} {[*new.shape]}")
    if first_frame < 0:
        raise ValueError(f"first_frame must be at least 0, not {first_frame}")
    return new
