"""Remember of each writer the number of its last insert, and the frames that it may still name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.replay.spec import Frames, TableSpec, inserted_form
from relaax.replay.table.frame_store import FrameSlots


class OutOfStep(ValueError):
    """Tell a writer that the table does not have what the writer takes for granted; nothing has changed.

    The writer begins anew: it goes on with the number `expected`, and sends every frame that it names.
    """

    def __init__(self, sentence: str, expected: int) -> None:
        super().__init__(sentence)
        self.expected = expected


class SequenceGap(OutOfStep):
    """Tell a writer that an insert is missing before this one."""


class FrameStoreFull(ValueError):
    """Refuse frames for which writers have left no room."""


class UnknownFrames(OutOfStep):
    """Tell a writer that an item names frames that are not there."""


FrameNumbers = npt.NDArray[np.int64]
State = Mapping[str, npt.NDArray[np.generic]]


def no_frames() -> FrameSlots:
    """Return the slots of no frame."""
    return np.zeros(0, np.int32)


@dataclass(slots=True)
class Writer:
    """Remember a writer. `frames` int32 [n] are the slots of its frames number `first`, `first` + 1, ..."""

    sequence: int = 0
    first: int = 0
    frames: FrameSlots = field(default_factory=no_frames)

    @property
    def next_frame(self) -> int:
        """Return the number that the next frame has."""
        return self.first + len(self.frames)

    def is_duplicate(self, sequence: int) -> bool:
        """Return whether the insert of this number was there. Raises SequenceGap if one before it was not."""
        if sequence < 1:
            raise ValueError(f"inserts are numbered from 1 on, not {sequence}")
        if sequence > self.sequence + 1:
            raise SequenceGap(
                f"insert {sequence} came, but {self.sequence + 1} is missing; the writer goes on with that number",
                self.sequence + 1,
            )
        return sequence <= self.sequence

    def is_continued_by(self, first_frame: int, count: int) -> bool:
        """Return whether `count` frames from number `first_frame` on follow those that are here."""
        return count == 0 or first_frame == self.next_frame

    def positions(self, numbers: FrameNumbers, first_frame: int, count: int) -> FrameNumbers:
        """Return places int64 [...] of frames among those that are here once `count` from `first_frame` on have come.

        If these do not follow, nothing else is here then. -1 for the number -1. Raises UnknownFrames for frames that
        are not among them.
        """
        follow = self.is_continued_by(first_frame, count)
        first, end = (self.first, self.next_frame + count) if follow else (first_frame, first_frame + count)
        wrong = ((numbers < first) | (numbers >= end)) & (numbers != -1)
        if wrong.any():
            raise UnknownFrames(
                f"frame {numbers[wrong][0]} is not there: the writer has {end - first} frames from {first} on; "
                "it sends them anew, with the number of this insert",
                self.sequence + 1,
            )
        return np.where(numbers == -1, -1, numbers - first)

    def restart_frames(self, first_frame: int) -> FrameSlots:
        """Expect frame number `first_frame` next; return the slots of all frames, none of which is here any more."""
        dropped, self.frames, self.first = self.frames, no_frames(), first_frame
        return dropped

    def drop_frames(self, keep_from: int) -> FrameSlots:
        """Drop frames with numbers below `keep_from`; return their slots."""
        count = min(max(keep_from - self.first, 0), len(self.frames))
        dropped, self.frames = self.frames[:count], self.frames[count:]
        self.first += count
        return dropped


class Writers:
    """Remember writers by name. Not thread-safe."""

    def __init__(self) -> None:
        self._writers: dict[str, Writer] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of all."""
        return list(self._writers)

    def __iter__(self) -> Iterator[Writer]:
        return iter(self._writers.values())

    def get(self, name: str) -> Writer:
        """Return a writer; one that nobody has heard of before is not kept until it is put."""
        return self._writers.get(name) or Writer()

    def put(self, name: str, writer: Writer) -> None:
        """Remember a writer."""
        self._writers[name] = writer

    def remove(self, name: str) -> FrameSlots:
        """Forget a writer, if it is known; return the slots of its frames."""
        return self._writers.pop(name, Writer()).frames

    @property
    def frames(self) -> int:
        """Return how many frames all writers keep."""
        return sum(len(writer.frames) for writer in self)

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return arrays from which `restore` makes the same writers."""
        numbers = [(writer.sequence, writer.first, len(writer.frames)) for writer in self]
        return {
            "writers/names": np.frombuffer(json.dumps(self.names).encode(), np.uint8),
            "writers/numbers": np.array(numbers, np.int64).reshape(-1, 3),
            "writers/frames": np.concatenate([no_frames(), *(writer.frames for writer in self)]),
        }

    def restore(self, state: State, lost: npt.NDArray[np.bool_]) -> None:
        """Remember the writers of a `state` and no others. Frames in `lost` slots, bool [room + 1], and those before
        them are dropped: a writer that names one is told to send it anew.
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
    """Return the number of items B and their columns: [B, *shape], for a stack of H frames int64 [B, H].

    Raises ValueError for other fields, dtypes or shapes than the specification's, and for more items than the table
    holds.
    """
    if columns.keys() != spec.fields.keys():
        raise ValueError(f"items of {spec.name!r} have the fields {sorted(spec.fields)}, not {sorted(columns)}")
    checked = {name: np.asarray(column) for name, column in columns.items()}
    counts = {len(column) if column.ndim else -1 for column in checked.values()}
    count = counts.pop()
    for name, kind in spec.fields.items():
        shape, dtype = inserted_form(kind)
        column = checked[name]
        if counts or column.shape != (count, *shape) or column.dtype != dtype:
            raise ValueError(
                f"{name!r} is {dtype} {['B', *shape]}, with one B for all fields, not {column.dtype} {[*column.shape]}"
            )
    if count > spec.capacity:
        raise ValueError(
            f"{count} items at once are more than the {spec.capacity} that {spec.name!r} holds; send fewer"
        )
    return count, checked


def checked_frames(spec: TableSpec, frames: npt.ArrayLike | None, first_frame: int) -> Frames:
    """Return new frames uint8 [F, h, w, c]; F is 0 for None.

    Raises ValueError for another dtype or shape, for a negative number, and for frames that the table does not keep.
    """
    if frames is None:
        return np.zeros((0, *(spec.frame or ())), np.uint8)
    if spec.frame is None:
        raise ValueError(f"no field of {spec.name!r} is a stack of frames: leave `frames` out")
    new = np.asarray(frames)
    if new.dtype != np.uint8 or new.ndim != 4 or new.shape[1:] != spec.frame:
        raise ValueError(f"frames are uint8 {['F', *spec.frame]}, not {new.dtype} {[*new.shape]}")
    if first_frame < 0:
        raise ValueError(f"frames are numbered from 0 on, not from {first_frame} on")
    return new
