"""Write the numbers of items as bytes, and read them: little-endian, and exactly as many as were declared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.replay import replay_pb2 as pb
from relaax.replay.spec import Field, TableSpec, inserted_form

MAX_MESSAGE = 64 * 2**20
"""Bytes of the longest message, of either side."""
MESSAGE_REST = 2**20
"""Bytes of it that are left for other things than columns and frames."""
MAX_ITEMS = 2**16
"""The most items of one request."""

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
    if dtype == np.bool_ and needed and np.frombuffer(data, np.uint8).max() > 1:
        raise ValueError(f"{what} are booleans, a byte of 0 or 1 each")
    return np.frombuffer(data, dtype.newbyteorder("<")).reshape(count, *shape)


def to_messages(columns: Columns) -> list[pb.Column]:
    """Return columns as messages."""
    return [pb.Column(name=name, data=to_bytes(column)) for name, column in columns.items()]


def inserted_columns(spec: TableSpec, count: int, messages: Iterable[pb.Column]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of an insert. Raises ValueError unless they are those that the table has, of its lengths."""
    return _columns(spec, count, messages, {name: inserted_form(field) for name, field in spec.fields.items()})


def sampled_columns(spec: TableSpec, count: int, messages: Iterable[pb.Column]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a sample. Raises ValueError unless they are those that the table has, of its lengths."""
    return _columns(spec, count, messages, {name: sampled_form(field) for name, field in spec.fields.items()})


def sampled_form(field: Field) -> Form:
    """Return the shape and dtype of a field's value as it is sampled."""
    return field.shape, np.dtype(field.dtype)


def sampled_bytes(spec: TableSpec) -> int:
    """Return the bytes of one sampled item: its fields, key, probability and age."""
    return 24 + sum(math.prod(field.shape) * np.dtype(field.dtype).itemsize for field in spec.fields.values())


def numbers_from(data: bytes, dtype: str, what: str, count: int) -> npt.NDArray[Any]:
    """Return `count` numbers. Raises ValueError if the bytes are too many or too few."""
    return from_bytes(data, ((), np.dtype(dtype)), count, what)


def _columns(
    spec: TableSpec, count: int, messages: Iterable[pb.Column], forms: Mapping[str, Form]
) -> dict[str, npt.NDArray[Any]]:
    found = list(messages)
    if len(found) != len(forms) or {column.name for column in found} != forms.keys():
        raise ValueError(f"items of {spec.name!r} have the fields {sorted(forms)}, each once; other columns came")
    return {column.name: from_bytes(column.data, forms[column.name], count, repr(column.name)) for column in found}
