"""Items and declarations as messages, and items in memory that a client and a replay server share.

Numbers are little-endian, and exactly as many as were declared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.replay import replay_pb2 as pb
from relaax.replay.spec import Field, Frames, TableDeclaration, TableSpec, inserted_form

MAX_MESSAGE = 64 * 2**20
"""Bytes of the longest message, of either side."""
MESSAGE_RESERVE = 2**20
"""Bytes of it that are left for other things than columns and frames."""
MAX_ITEMS = 2**16
"""The most items of one request."""
MAX_FIELDS = 64
MAX_DIMENSIONS = 8
MAX_NAME, MAX_FIELD_NAME = 128, 64
MAX_PENDING_INSERTS = 2
"""Inserts of one client that may have no answer yet, each in memory of its own."""
INSERT_NUMBERS = MAX_PENDING_INSERTS * MAX_MESSAGE // 4
"""Length of the memory for all of them, in float32. What is never written to takes no memory."""
MAX_BATCHES = 16
"""Samples of one client that may be in use, each in a segment of its own."""
_ALIGNMENT = 64

_KINDS = {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64)}
_DTYPES = frozenset({"bool", *(f"{kind}{bits}" for kind, sizes in _KINDS.items() for bits in sizes)})
_SAMPLERS: dict[str, pb.Sampler] = {"uniform": pb.SAMPLER_UNIFORM, "prioritized": pb.SAMPLER_PRIORITIZED}
_REMOVERS: dict[str, pb.Remover] = {"fifo": pb.REMOVER_FIFO, "lowest_priority": pb.REMOVER_LOWEST_PRIORITY}

Columns = Mapping[str, npt.NDArray[Any]]
Form = tuple[tuple[int, ...], np.dtype[Any]]


def to_bytes(numbers: npt.NDArray[Any]) -> bytes:
    """Return numbers as bytes, little-endian."""
    return np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<")).tobytes()


def from_bytes(data: bytes, form: Form, count: int, what: str) -> npt.NDArray[Any]:
    """Return `count` values of a shape and dtype, read-only and without a copy.

    Raises ValueError if the bytes are too many or too few, and for booleans that are neither 0 nor 1.
    """
    shape, dtype = form
    needed = count * math.prod(shape) * dtype.itemsize
    if len(data) != needed:
        raise ValueError(f"{what} of {count} are {needed} bytes of {dtype} {[count, *shape]}, not {len(data)} bytes")
    if dtype == np.bool_ and needed:
        _check_booleans(np.frombuffer(data, np.uint8), what)
    return np.frombuffer(data, dtype.newbyteorder("<")).reshape(count, *shape)


def numbers_from_bytes(data: bytes, dtype: str, what: str, count: int) -> npt.NDArray[Any]:
    """Return `count` numbers. Raises ValueError if the bytes are too many or too few."""
    return from_bytes(data, ((), np.dtype(dtype)), count, what)


def to_messages(columns: Columns) -> list[pb.Column]:
    """Return columns as messages."""
    return [pb.Column(name=name, data=to_bytes(column)) for name, column in columns.items()]


def inserted_columns(spec: TableSpec, count: int, messages: Iterable[pb.Column]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of an insert. Raises ValueError unless they are those that the table has, of its lengths."""
    return _columns(spec, count, messages, _inserted_forms(spec))


def sampled_columns(spec: TableSpec, count: int, messages: Iterable[pb.Column]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a sample. Raises ValueError unless they are those that the table has, of its lengths."""
    return _columns(spec, count, messages, _sampled_forms(spec))


def sampled_bytes(spec: TableSpec) -> int:
    """Return the bytes of one sampled item: its fields, key, probability and age."""
    return 24 + sum(_item_bytes(form) for form in _sampled_forms(spec).values())


def _columns(
    spec: TableSpec, count: int, messages: Iterable[pb.Column], forms: Mapping[str, Form]
) -> dict[str, npt.NDArray[Any]]:
    found = list(messages)
    if len(found) != len(forms) or {column.name for column in found} != forms.keys():
        raise ValueError(f"items of {spec.name!r} have the fields {sorted(forms)}, each once; other columns came")
    return {column.name: from_bytes(column.data, forms[column.name], count, repr(column.name)) for column in found}


def _inserted_forms(spec: TableSpec) -> dict[str, Form]:
    return {name: inserted_form(field) for name, field in sorted(spec.fields.items())}


def _sampled_forms(spec: TableSpec) -> dict[str, Form]:
    return {name: (field.shape, np.dtype(field.dtype)) for name, field in sorted(spec.fields.items())}


def _item_bytes(form: Form) -> int:
    shape, dtype = form
    return math.prod(shape) * dtype.itemsize


def _check_booleans(bits: npt.NDArray[np.uint8], what: str) -> None:
    if bits.size and bits.max() > 1:
        raise ValueError(f"{what} are booleans, a byte of 0 or 1 each")


class ColumnLayout:
    """The places of columns of these forms in memory, one after the other."""

    def __init__(self, forms: Mapping[str, Form]) -> None:
        self._columns = [(name, *form, _item_bytes(form)) for name, form in forms.items()]

    def length(self, count: int) -> int:
        """Return how many bytes so many items take."""
        return sum(_aligned(count * size) for _, _, _, size in self._columns)

    def arrays(self, count: int, memory: memoryview | bytes) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of so many items, where they lie."""
        columns, at = {}, 0
        for name, shape, dtype, size in self._columns:
            columns[name] = np.ndarray((count, *shape), dtype, memory, at)
            at += _aligned(count * size)
        return columns


class InsertLayout:
    """The places of an insert's columns and, behind them, its frames."""

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        forms = _inserted_forms(spec)
        self._columns = ColumnLayout(forms)
        self._frame = spec.frame or ()
        self._frame_bytes = math.prod(spec.frame or (0,))
        self._booleans = [name for name, (_, dtype) in forms.items() if dtype == np.bool_]

    def length(self, count: int, frames: int) -> int:
        """Return how many bytes an insert of so many items and frames takes."""
        return self._columns.length(count) + frames * self._frame_bytes

    def arrays(self, count: int, memory: memoryview) -> tuple[dict[str, npt.NDArray[Any]], Frames]:
        """Return the columns of an insert, and its frames, where they lie: all of the rest of `memory`.

        Raises ValueError if the memory is too short, or the rest is no whole number of frames.
        """
        frames = self._frames(count, memory, self._columns.length(count))
        return self._columns.arrays(count, memory), frames

    def copied_arrays(self, count: int, memory: memoryview) -> tuple[dict[str, npt.NDArray[Any]], Frames]:
        """Return the same of memory that others can still write to: columns are copies, which are checked, frames not.

        Raises ValueError for booleans that are neither 0 nor 1, too.
        """
        end = self._columns.length(count)
        frames = self._frames(count, memory, end)
        columns = self._columns.arrays(count, bytes(memory[:end]))
        for name in self._booleans:
            _check_booleans(columns[name].view(np.uint8), repr(name))
        return columns, frames

    def _frames(self, count: int, memory: memoryview, end: int) -> Frames:
        rest = len(memory) - end
        if rest < 0:
            raise ValueError(f"memory of {len(memory)} bytes holds no {count} items, which take {end}")
        frames = rest // self._frame_bytes if self._frame_bytes else 0
        if frames * self._frame_bytes != rest:
            name, frame = self._spec.name, self._spec.frame
            raise ValueError(f"{rest} bytes behind {count} items of {name!r} are no frames of {frame}")
        pictures: Frames = np.ndarray((frames, *self._frame), np.uint8, memory, end)
        return pictures


@dataclass(frozen=True, slots=True)
class SampleArrays:
    """A sample where it lies: keys uint64, probabilities float64 and ages int64 [B], and columns."""

    keys: npt.NDArray[np.uint64]
    probabilities: npt.NDArray[np.float64]
    ages: npt.NDArray[np.int64]
    columns: dict[str, npt.NDArray[Any]]


_NUMBERS: dict[str, Form] = {  # no field has these names: they are not printable
    "\0keys": ((), np.dtype(np.uint64)),
    "\0probabilities": ((), np.dtype(np.float64)),
    "\0ages": ((), np.dtype(np.int64)),
}


class SampleLayout:
    """The places of a sample's numbers and columns."""

    def __init__(self, spec: TableSpec) -> None:
        self._layout = ColumnLayout({**_NUMBERS, **_sampled_forms(spec)})

    def length(self, count: int) -> int:
        """Return how many bytes a sample of so many items takes."""
        return self._layout.length(count)

    def arrays(self, count: int, memory: memoryview) -> SampleArrays:
        """Return the arrays of a sample, where they lie. Raises ValueError if the memory is too short."""
        needed = self.length(count)
        if len(memory) < needed:
            raise ValueError(f"memory of {len(memory)} bytes holds no {count} items, which take {needed}")
        columns = self._layout.arrays(count, memory)
        keys, probabilities, ages = (columns.pop(name) for name in _NUMBERS)
        return SampleArrays(keys, probabilities, ages, columns)


def sample_from_message(spec: TableSpec, count: int, message: pb.SampleResponse) -> SampleArrays:
    """Return the arrays that came in a message. Raises ValueError unless they are those that were asked for."""
    return SampleArrays(
        numbers_from_bytes(message.keys, "uint64", "keys", count),
        numbers_from_bytes(message.probabilities, "float64", "probabilities", count),
        numbers_from_bytes(message.ages, "int64", "ages", count),
        sampled_columns(spec, count, message.columns),
    )


def _aligned(length: int) -> int:
    """Return where the next column begins."""
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def declaration_to_message(declaration: TableDeclaration) -> pb.TableDescription:
    """Return a declaration as a message."""
    spec = declaration.spec
    return pb.TableDescription(
        name=spec.name,
        fields=[
            pb.FieldDeclaration(name=name, dtype=field.dtype, shape=field.shape, frames=field.frames)
            for name, field in sorted(spec.fields.items())
        ],
        capacity=spec.capacity,
        sampler=_SAMPLERS[spec.sampler],
        alpha=spec.alpha,
        remover=_REMOVERS[spec.remover],
        frame=spec.frame or (),
        frame_slots=spec.frame_slots,
        samples_per_insert=declaration.samples_per_insert,
        min_size=declaration.min_size,
        error_buffer=declaration.error_buffer,
    )


def declaration_from_message(message: pb.TableDescription) -> TableDeclaration:
    """Return the declaration of a message. Raises ValueError for what cannot be, and for too much of anything."""
    check_name(message.name, "a table", MAX_NAME)
    if len(message.fields) > MAX_FIELDS:
        raise ValueError(f"a table of {len(message.fields)} fields; {MAX_FIELDS} are the most")
    fields: dict[str, Field] = {}
    for field in message.fields:
        check_name(field.name, "a field", MAX_FIELD_NAME)
        if field.name in fields:
            raise ValueError(f"two fields have the name {field.name!r}; each needs its own")
        if field.dtype not in _DTYPES:
            raise ValueError(
                f"{field.name!r} has the dtype {field.dtype[:MAX_NAME]!r}; one of {sorted(_DTYPES)} is needed"
            )
        if len(field.shape) > MAX_DIMENSIONS:
            raise ValueError(f"{field.name!r} has {len(field.shape)} dimensions; {MAX_DIMENSIONS} are the most")
        fields[field.name] = Field(field.dtype, tuple(field.shape), field.frames)
    if len(message.frame) > MAX_DIMENSIONS:
        raise ValueError(f"a frame has {len(message.frame)} dimensions; 3 are needed")
    optional = ("frame_slots", "samples_per_insert", "error_buffer")
    given: dict[str, Any] = {name: getattr(message, name) if message.HasField(name) else None for name in optional}
    spec = TableSpec(
        name=message.name,
        fields=fields,
        capacity=message.capacity,
        sampler=_name_of(message.sampler, _SAMPLERS, "sampler"),
        alpha=message.alpha,
        remover=_name_of(message.remover, _REMOVERS, "remover"),
        frame=tuple(message.frame) or None,
        frame_slots=given.pop("frame_slots"),
    )
    return TableDeclaration(spec, min_size=message.min_size, **given)


def declaration_difference(there: TableDeclaration, asked: TableDeclaration) -> str | None:
    """Return the first difference of two declarations as half a sentence; None if there is none."""
    for (name, one), (_, other) in zip(_compared_values(there, asked), _compared_values(asked, there), strict=True):
        if one != other:
            return f"{name} is {one} there and {other} here"
    return None


def check_name(name: str, what: str, longest: int) -> None:
    """Raise ValueError unless a name may be shown and is short."""
    if not name or len(name) > longest or not name.isprintable():
        raise ValueError(f"{what} has a name of 1 to {longest} printable characters, not {name[:longest]!r}")


def _compared_values(declaration: TableDeclaration, other: TableDeclaration) -> Iterator[tuple[str, object]]:
    spec = declaration.spec
    for name in sorted({*spec.fields, *other.spec.fields}):
        field = spec.fields.get(name)
        kind = "missing" if field is None else f"{field.dtype} {[*field.shape]}"
        yield f"the field {name!r}", kind if field is None or not field.frames else f"{kind}, {field.frames} frames"
    for name in ("capacity", "sampler", "alpha", "remover", "frame", "frame_slots"):
        yield name, getattr(spec, name)
    for name in ("samples_per_insert", "min_size", "error_buffer"):
        yield name, getattr(declaration, name)


def _name_of(number: int, numbers: dict[str, Any], what: str) -> Any:
    for name, one in numbers.items():
        if one == number:
            return name
    raise ValueError(f"{what} {number} is none of {', '.join(numbers)}")
