"""Lay out the columns of an insert and of a sample in memory that a client and a replay server share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.replay import replay_pb2 as pb
from relaax.replay.frame_store import Frames
from relaax.replay.spec import TableSpec, inserted_form
from relaax.replay.wire import MAX_MESSAGE, Form, numbers_from, sampled_columns, sampled_form

INSERTS_AHEAD = 2
"""Inserts of one client that may have no answer yet, each in memory of its own."""
INSERT_NUMBERS = INSERTS_AHEAD * MAX_MESSAGE // 4
"""Length of the memory for all of them, in float32. What is never written to takes no memory."""
MOST_BATCHES = 16
"""Samples of one client that may be in use, each in a segment of its own."""
_ALIGNMENT = 64
_NUMBERS: tuple[Form, ...] = (
    ((), np.dtype(np.uint64)),
    ((), np.dtype(np.float64)),
    ((), np.dtype(np.int64)),
)


@dataclass(frozen=True, slots=True)
class SampleArrays:
    """A sample where it lies: keys uint64, probabilities float64 and ages int64 [B], and columns."""

    keys: npt.NDArray[np.uint64]
    probabilities: npt.NDArray[np.float64]
    ages: npt.NDArray[np.int64]
    columns: dict[str, npt.NDArray[Any]]


class InsertLayout:
    """Where the columns and the frames of an insert into such a table lie in memory, one after the other."""

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._forms = _inserted(spec)
        self._columns = list(zip(sorted(spec.fields), self._forms, map(_item_bytes, self._forms), strict=True))
        self._frame = spec.frame or ()
        self._frame_bytes = math.prod(spec.frame or (0,))
        self._booleans = [name for name, (_, dtype), _ in self._columns if dtype == np.bool_]

    def length(self, count: int, frames: int) -> int:
        """Return how many bytes an insert of so many items and frames takes."""
        return self._end(count) + frames * self._frame_bytes

    def arrays(self, count: int, memory: memoryview) -> tuple[dict[str, npt.NDArray[Any]], Frames]:
        """Return the columns of an insert, and its frames, where they lie: all of the rest of `memory`.

        Raises ValueError if the memory is too short, or the rest is no whole number of frames.
        """
        end = self._end(count)
        frames = self._pictures(count, memory, end)
        return self._views(count, memory), frames

    def owned(self, count: int, memory: memoryview) -> tuple[dict[str, npt.NDArray[Any]], Frames]:
        """Return the same of memory that others can still write to: columns are copies, which are checked, frames not.

        Raises ValueError for booleans that are neither 0 nor 1, too.
        """
        end = self._end(count)
        frames = self._pictures(count, memory, end)
        columns = self._views(count, bytes(memory[:end]))
        for name in self._booleans:
            bits = columns[name].view(np.uint8)
            if bits.size and bits.max() > 1:
                raise ValueError(f"{name!r} are booleans, a byte of 0 or 1 each")
        return columns, frames

    def _views(self, count: int, memory: memoryview | bytes) -> dict[str, npt.NDArray[Any]]:
        columns, at = {}, 0
        for name, (shape, dtype), size in self._columns:
            columns[name] = np.ndarray((count, *shape), dtype, memory, at)
            at += _aligned(count * size)
        return columns

    def _pictures(self, count: int, memory: memoryview, end: int) -> Frames:
        rest = len(memory) - end
        if rest < 0:
            raise ValueError(f"memory of {len(memory)} bytes holds no {count} items, which take {end}")
        frames = rest // self._frame_bytes if self._frame_bytes else 0
        if frames * self._frame_bytes != rest:
            name, frame = self._spec.name, self._spec.frame
            raise ValueError(f"{rest} bytes behind {count} items of {name!r} are no frames of {frame}")
        pictures: Frames = np.ndarray((frames, *self._frame), np.uint8, memory, end)
        return pictures

    def _end(self, count: int) -> int:
        return sum(_aligned(count * size) for _, _, size in self._columns)


def sample_bytes(spec: TableSpec, count: int) -> int:
    """Return how many bytes a sample of so many items takes."""
    return _end(_sampled(spec), count)


def sample_arrays(spec: TableSpec, count: int, memory: memoryview) -> SampleArrays:
    """Return the arrays of a sample, where they lie. Raises ValueError if the memory is too short."""
    keys, probabilities, ages, *columns = _arrays(_sampled(spec), count, memory)
    return SampleArrays(keys, probabilities, ages, dict(zip(sorted(spec.fields), columns, strict=True)))


def sample_of_message(spec: TableSpec, count: int, message: pb.SampleResponse) -> SampleArrays:
    """Return the arrays that came in a message. Raises ValueError unless they are those that were asked for."""
    return SampleArrays(
        numbers_from(message.keys, "uint64", "keys", count),
        numbers_from(message.probabilities, "float64", "probabilities", count),
        numbers_from(message.ages, "int64", "ages", count),
        sampled_columns(spec, count, message.columns),
    )


def _inserted(spec: TableSpec) -> list[Form]:
    return [inserted_form(spec.fields[name]) for name in sorted(spec.fields)]


def _sampled(spec: TableSpec) -> list[Form]:
    return [*_NUMBERS, *(sampled_form(spec.fields[name]) for name in sorted(spec.fields))]


def _item_bytes(form: Form) -> int:
    shape, dtype = form
    return math.prod(shape) * dtype.itemsize


def _aligned(length: int) -> int:
    """Return where the next column begins."""
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def _end(forms: Sequence[Form], count: int) -> int:
    return sum(_aligned(count * _item_bytes(form)) for form in forms)


def _arrays(forms: Sequence[Form], count: int, memory: memoryview) -> list[npt.NDArray[Any]]:
    if len(memory) < _end(forms, count):
        raise ValueError(f"memory of {len(memory)} bytes holds no {count} items, which take {_end(forms, count)}")
    arrays, at = [], 0
    for shape, dtype in forms:
        end = at + count * math.prod(shape) * dtype.itemsize
        arrays.append(np.frombuffer(memory[at:end], dtype).reshape(count, *shape))
        at += _aligned(end - at)
    return arrays
