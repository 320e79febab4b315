"""Encoding of items and declarations in messages, and of items in shared memory.

Numbers are little-endian. Their count must match the declaration exactly.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from relaax.replay import replay_pb2 as pb
from relaax.replay import replay_pb2_grpc as pb_grpc
from relaax.replay.spec import Field, Frames, TableDeclaration, TableSpec, inserted_form
from relaax.transport.long_messages import LongMessageWire, add_service

MAX_MESSAGE = 64 * 2**20
"""Maximum length of a message in bytes, in both directions."""
MESSAGE_RESERVE = 2**20
"""Bytes of a message that are reserved for everything except columns and frames."""
MAX_ITEMS = 2**16
"""Maximum number of items of one request."""
MAX_FIELDS = 64
MAX_DIMENSIONS = 8
MAX_NAME, MAX_FIELD_NAME = 128, 64
MAX_PENDING_INSERTS = 4
"""Maximum number of inserts in flight through one shared-memory connection, each in its own part of the memory."""
INSERT_NUMBERS = MAX_PENDING_INSERTS * MAX_MESSAGE // 4
"""Length of the shared memory for inserts, in float32 numbers. Unwritten pages use no memory."""
MAX_BATCHES = 16
"""Maximum number of samples in use by one connection, each in its own segment."""
_ALIGNMENT = 64

_KINDS = {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64)}
_DTYPES = frozenset({"bool", *(f"{kind}{bits}" for kind, sizes in _KINDS.items() for bits in sizes)})
_SAMPLERS: dict[str, pb.Sampler] = {"uniform": pb.SAMPLER_UNIFORM, "prioritized": pb.SAMPLER_PRIORITIZED}
_REMOVERS: dict[str, pb.Remover] = {
    "fifo": pb.REMOVER_FIFO,
    "lowest_priority": pb.REMOVER_LOWEST_PRIORITY,
    "inverse_priority": pb.REMOVER_INVERSE_PRIORITY,
}

Columns = Mapping[str, npt.NDArray[Any]]
Form = tuple[tuple[int, ...], np.dtype[Any]]


def to_bytes(numbers: npt.NDArray[Any]) -> bytes:
    """Return numbers as little-endian bytes."""
    return np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<")).tobytes()


def from_bytes(data: bytes, form: Form, count: int, what: str) -> npt.NDArray[Any]:
    """Return `count` values of a shape and dtype, as a read-only view.

    Raises ValueError if the number of bytes is wrong, and for booleans other than 0 and 1.
    """
    shape, dtype = form
    needed = count * math.prod(shape) * dtype.itemsize
    if len(data) != needed:
        raise ValueError(
            f"{what} must be {needed} bytes of {dtype} {[count, *shape]}, not {len(data)} bytes as received"
        )
    if dtype == np.bool_ and needed:
        _check_booleans(np.frombuffer(data, np.uint8), what)
    return np.frombuffer(data, dtype.newbyteorder("<")).reshape(count, *shape)


def numbers_from_bytes(data: bytes, dtype: str, what: str, count: int) -> npt.NDArray[Any]:
    """Return `count` numbers as a read-only view. Raises ValueError if the number of bytes is wrong."""
    return from_bytes(data, ((), np.dtype(dtype)), count, what)


def to_messages(columns: Columns) -> list[pb.Column]:
    """Return columns as messages."""
    return [pb.Column(name=name, data=to_bytes(column)) for name, column in columns.items()]


def inserted_columns(spec: TableSpec, count: int, messages: Iterable[pb.Column]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of an insert. Raises ValueError if names or lengths do not match the table."""
    return _columns(spec, count, messages, _inserted_forms(spec))


def sampled_columns(spec: TableSpec, count: int, messages: Iterable[pb.Column]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a sample. Raises ValueError if names or lengths do not match the table."""
    return _columns(spec, count, messages, _sampled_forms(spec))


def sampled_bytes(spec: TableSpec) -> int:
    """Return the size of one sampled item in bytes: its fields, key, probability and age."""
    return 24 + sum(_item_bytes(form) for form in _sampled_forms(spec).values())


def most_sampled(spec: TableSpec) -> int:
    """Return the maximum number of items of one sample."""
    return min(MAX_ITEMS, (MAX_MESSAGE - MESSAGE_RESERVE) // sampled_bytes(spec))


def _columns(
    spec: TableSpec, count: int, messages: Iterable[pb.Column], forms: Mapping[str, Form]
) -> dict[str, npt.NDArray[Any]]:
    found = list(messages)
    if len(found) != len(forms) or {column.name for column in found} != forms.keys():
        raise ValueError(f"columns of table {spec.name!r} must be {sorted(forms)}, each exactly once")
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
        raise ValueError(f"{what} must be booleans: bytes 0 or 1")


_PlacedColumn = tuple[str, tuple[int, ...], np.dtype[Any], int]


class ColumnLayout:
    """The layout of columns in memory, one after the other, each aligned to 64 bytes."""

    def __init__(self, forms: Mapping[str, Form]) -> None:
        self._columns = [(name, *form, _item_bytes(form)) for name, form in forms.items()]
        self._placed: tuple[int, int, list[_PlacedColumn]] = (-1, 0, [])  # of the last count, with the length

    def length(self, count: int) -> int:
        """Return the length of `count` items in bytes."""
        return self._places(count)[1]

    def arrays(self, count: int, memory: memoryview | bytes) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of `count` items as views of `memory`."""
        return {name: np.ndarray(shape, dtype, memory, at) for name, shape, dtype, at in self._places(count)[2]}

    def _places(self, count: int) -> tuple[int, int, list[_PlacedColumn]]:
        """Return `count`, the length in bytes, and the columns with their shapes and offsets."""
        placed = self._placed
        if placed[0] != count:
            columns: list[_PlacedColumn] = []
            at = 0
            for name, shape, dtype, size in self._columns:
                columns.append((name, (count, *shape), dtype, at))
                at += _aligned(count * size)
            self._placed = placed = (count, at, columns)
        return placed


class InsertLayout:
    """The layout of an insert in memory: its columns, followed by its frames."""

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        forms = _inserted_forms(spec)
        self._columns = ColumnLayout(forms)
        self._frame = spec.frame or ()
        self._frame_bytes = math.prod(spec.frame or (0,))
        self._booleans = [name for name, (_, dtype) in forms.items() if dtype == np.bool_]

    def length(self, count: int, frames: int) -> int:
        """Return the length in bytes of an insert of `count` items and `frames` frames."""
        return self._columns.length(count) + frames * self._frame_bytes

    def arrays(self, count: int, memory: memoryview) -> tuple[dict[str, npt.NDArray[Any]], Frames]:
        """Return the columns and frames of an insert as views of `memory`. Frames take the rest of `memory`.

        Raises ValueError if the memory is too short, or the rest is not a whole number of frames.
        """
        frames = self._frames(count, memory, self._columns.length(count))
        return self._columns.arrays(count, memory), frames

    def checked_arrays(
        self, count: int, memory: memoryview, *, copied: bool
    ) -> tuple[dict[str, npt.NDArray[Any]], Frames]:
        """Return the columns, which are checked, and views of the frames.

        copied: the columns are copies, because the writer of `memory` can still change it.

        Raises ValueError like `arrays`, and for booleans other than 0 and 1.
        """
        end = self._columns.length(count)
        frames = self._frames(count, memory, end)
        columns = self._columns.arrays(count, bytes(memory[:end]) if copied else memory)
        for name in self._booleans:
            _check_booleans(columns[name].view(np.uint8), repr(name))
        return columns, frames

    def _frames(self, count: int, memory: memoryview, end: int) -> Frames:
        rest = len(memory) - end
        if rest < 0:
            raise ValueError(
                f"memory of {len(memory)} bytes is too short for an insert of {count} items, which needs {end}"
            )
        frames = rest // self._frame_bytes if self._frame_bytes else 0
        if frames * self._frame_bytes != rest:
            name, frame = self._spec.name, self._spec.frame
            raise ValueError(f"{rest} bytes after {count} items of {name!r} are not a whole number of frames {frame}")
        pictures: Frames = np.ndarray((frames, *self._frame), np.uint8, memory, end)
        return pictures


@dataclass(frozen=True, slots=True)
class SampleArrays:
    """The arrays of a sample: keys uint64 [B], probabilities float64 [B], ages int64 [B], and columns."""

    keys: npt.NDArray[np.uint64]
    probabilities: npt.NDArray[np.float64]
    ages: npt.NDArray[np.int64]
    columns: dict[str, npt.NDArray[Any]]


_NUMBERS: dict[str, Form] = {  # not printable, so that no field can have these names
    "\0keys": ((), np.dtype(np.uint64)),
    "\0probabilities": ((), np.dtype(np.float64)),
    "\0ages": ((), np.dtype(np.int64)),
}


class SampleLayout:
    """The layout of a sample in memory."""

    def __init__(self, spec: TableSpec) -> None:
        forms = _sampled_forms(spec)
        self._layout = ColumnLayout({**_NUMBERS, **forms})
        self._booleans = [name for name, (_, dtype) in forms.items() if dtype == np.bool_]

    def length(self, count: int) -> int:
        """Return the length in bytes of a sample of `count` items."""
        return self._layout.length(count)

    def arrays(self, count: int, memory: memoryview) -> SampleArrays:
        """Return the arrays of a sample as views of `memory`. Raises ValueError if it is too short."""
        needed = self.length(count)
        if len(memory) < needed:
            raise ValueError(
                f"memory of {len(memory)} bytes is too short for a sample of {count} items, which needs {needed}"
            )
        columns = self._layout.arrays(count, memory)
        keys, probabilities, ages = (columns.pop(name) for name in _NUMBERS)
        return SampleArrays(keys, probabilities, ages, columns)

    def received_arrays(self, count: int, data: memoryview) -> SampleArrays:
        """Return the arrays of an answer by gRPC as views. Raises ValueError like `arrays`, and for other booleans."""
        arrays = self.arrays(count, data)
        for name in self._booleans:
            _check_booleans(arrays.columns[name].view(np.uint8), repr(name))
        return arrays


INSERT_REQUEST = LongMessageWire(pb.InsertRequest, "arrays")
SAMPLE_RESPONSE = LongMessageWire(pb.SampleResponse, "arrays")
SERVICE = pb.DESCRIPTOR.services_by_name["ReplayService"]
CAN_PACK = sys.byteorder == "little"
"""Whether arrays have the wire's byte order in this process's memory, so that they can be in one field."""


class ReplayStub(pb_grpc.ReplayServiceStub):
    """A client stub whose Insert takes a Carrier, and whose Sample returns one."""

    def __init__(self, channel: grpc.Channel) -> None:
        super().__init__(channel)  # type: ignore[no-untyped-call]  # generated
        self.Insert = channel.unary_unary(
            f"/{SERVICE.full_name}/Insert",
            request_serializer=INSERT_REQUEST.write,
            response_deserializer=pb.InsertResponse.FromString,
        )
        self.Sample = channel.unary_unary(
            f"/{SERVICE.full_name}/Sample",
            request_serializer=pb.SampleRequest.SerializeToString,
            response_deserializer=SAMPLE_RESPONSE.read,
        )


def add_to_server(servicer: Any, server: grpc.Server) -> None:
    """Add a servicer whose Insert takes a Carrier, and whose Sample returns one."""
    add_service(SERVICE, servicer, server, {"Insert": INSERT_REQUEST}, {"Sample": SAMPLE_RESPONSE})


def sample_from_message(spec: TableSpec, count: int, message: pb.SampleResponse) -> SampleArrays:
    """Return the arrays of a message. Raises ValueError if they do not match the request."""
    return SampleArrays(
        numbers_from_bytes(message.keys, "uint64", "keys", count),
        numbers_from_bytes(message.probabilities, "float64", "probabilities", count),
        numbers_from_bytes(message.ages, "int64", "ages", count),
        sampled_columns(spec, count, message.columns),
    )


def _aligned(length: int) -> int:
    """Round `length` up to the alignment."""
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
        remover_exponent=spec.remover_exponent,
        frame=spec.frame or (),
        frame_slots=spec.frame_slots,
        samples_per_insert=declaration.samples_per_insert,
        min_size=declaration.min_size,
        error_buffer=declaration.error_buffer,
        free_inserts=not declaration.inserts_wait,
        demonstration_priority=spec.demonstration_priority,
    )


def declaration_from_message(message: pb.TableDescription) -> TableDeclaration:
    """Return the declaration of a message. Raises ValueError if it is invalid or exceeds a limit."""
    check_name(message.name, "a table", MAX_NAME)
    if len(message.fields) > MAX_FIELDS:
        raise ValueError(f"a table may have at most {MAX_FIELDS} fields, not {len(message.fields)}")
    fields: dict[str, Field] = {}
    for field in message.fields:
        check_name(field.name, "a field", MAX_FIELD_NAME)
        if field.name in fields:
            raise ValueError(f"two fields have the name {field.name!r}; names must be unique")
        if field.dtype not in _DTYPES:
            raise ValueError(
                f"dtype of field {field.name!r} must be one of {sorted(_DTYPES)}, not {field.dtype[:MAX_NAME]!r}"
            )
        if len(field.shape) > MAX_DIMENSIONS:
            raise ValueError(
                f"the shape of field {field.name!r} may have at most {MAX_DIMENSIONS} dimensions, "
                f"not {len(field.shape)}"
            )
        fields[field.name] = Field(field.dtype, tuple(field.shape), field.frames)
    if len(message.frame) > MAX_DIMENSIONS:
        raise ValueError(f"a frame must have 3 dimensions, not {len(message.frame)}")
    optional = ("frame_slots", "samples_per_insert", "error_buffer")
    given: dict[str, Any] = {name: getattr(message, name) if message.HasField(name) else None for name in optional}
    spec = TableSpec(
        name=message.name,
        fields=fields,
        capacity=message.capacity,
        sampler=_name_of(message.sampler, _SAMPLERS, "sampler"),
        alpha=message.alpha,
        remover=_name_of(message.remover, _REMOVERS, "remover"),
        remover_exponent=message.remover_exponent,
        frame=tuple(message.frame) or None,
        frame_slots=given.pop("frame_slots"),
        demonstration_priority=message.demonstration_priority,
    )
    return TableDeclaration(spec, min_size=message.min_size, inserts_wait=not message.free_inserts, **given)


def declaration_difference(there: TableDeclaration, asked: TableDeclaration) -> str | None:
    """Return the first difference of two declarations as a clause; None if they are equal."""
    for (name, one), (_, other) in zip(_compared_values(there, asked), _compared_values(asked, there), strict=True):
        if one != other:
            return f"{name} is {one} there and {other} here"
    return None


def check_name(name: str, what: str, longest: int) -> None:
    """Raise ValueError unless `name` is printable and has 1 to `longest` characters."""
    if not name or len(name) > longest or not name.isprintable():
        raise ValueError(f"name of {what} must have 1 to {longest} printable characters, not {name[:longest]!r}")


def _compared_values(declaration: TableDeclaration, other: TableDeclaration) -> Iterator[tuple[str, object]]:
    spec = declaration.spec
    for name in sorted({*spec.fields, *other.spec.fields}):
        field = spec.fields.get(name)
        kind = "missing" if field is None else f"{field.dtype} {[*field.shape]}"
        yield f"the field {name!r}", kind if field is None or not field.frames else f"{kind}, {field.frames} frames"
    order = ("sampler", "alpha", "remover", "remover_exponent", "demonstration_priority")
    for name in ("capacity", *order, "frame", "frame_slots"):
        yield name, getattr(spec, name)
    for name in ("samples_per_insert", "min_size", "error_buffer", "inserts_wait"):
        yield name, getattr(declaration, name)


def _name_of(number: int, numbers: dict[str, Any], what: str) -> Any:
    for name, one in numbers.items():
        if one == number:
            return name
    raise ValueError(f"{what} must be one of {', '.join(numbers)}, not number {number}")
