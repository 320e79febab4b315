"""Safetensors files: written from the memory of the arrays, and read as views, without another copy.

A file has three parts: the header's length (8 bytes, little-endian); the header, JSON with each array's dtype, shape
and position; the arrays' bytes, little-endian in C order. The library `safetensors` would build one `bytes` object,
which takes the same memory again, and would hold Python's lock meanwhile.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[np.generic]]

_NAMES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
_DTYPES = {name: np.dtype(code) for name, code in _NAMES.items()}
_BY_DTYPE = {dtype: name for name, dtype in _DTYPES.items()}
_METADATA = "__metadata__"
_LENGTH_BYTES = 8
_ALIGNMENT = 8
_MAX_HEADER_BYTES = 100_000_000  # the limit of the library `safetensors`


def to_buffers(arrays: Arrays, metadata: Mapping[str, str] | None = None) -> list[memoryview]:
    """Return the file as a header and the memory of each array, which is copied if it is not contiguous.

    `metadata`: texts by name. Raises ValueError for a dtype that the format does not support.
    """
    little = {name: _little(name, array) for name, array in arrays.items()}
    # Wide dtypes first, so that each array begins at a multiple of its item size.
    order = sorted(little, key=lambda name: (-little[name].dtype.itemsize, name))
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        array = little[name]
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _BY_DTYPE[array.dtype], "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    first = memoryview(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    return [first, *(little[name].reshape(-1).view(np.uint8).data for name in order if little[name].nbytes)]


def from_bytes(data: npt.NDArray[np.uint8]) -> tuple[dict[str, npt.NDArray[np.generic]], dict[str, str]]:
    """Return the arrays of a whole file as views of `data`, and its metadata. Raises ValueError if it is invalid."""
    header, begin = _header(data)
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("the metadata of the array file must be texts")
    body = data[begin:]
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    expected = 0
    for name, entry in sorted(header.items(), key=_place):
        dtype, shape, (start, end) = _DTYPES.get(str(entry["dtype"])), tuple(entry["shape"]), entry["data_offsets"]
        if dtype is None or not all(type(axis) is int and axis >= 0 for axis in shape):
            raise ValueError(f"{name!r} has an invalid dtype or shape: {entry['dtype']!r} {entry['shape']!r}")
        if start != expected or end != start + math.prod(shape) * dtype.itemsize or end > len(body):
            raise ValueError(f"{name!r} has invalid byte positions {start} to {end}")
        try:
            arrays[name] = _view(body[start:end], dtype).reshape(shape)
        except (ValueError, OverflowError):  # more axes than numpy supports, or a huge axis and an axis of length 0
            raise ValueError(f"{name!r} has the shape {entry['shape']!r:.100}, which numpy does not support") from None
        expected = end
    if expected != len(body):
        raise ValueError(f"{len(body) - expected} bytes after the last array are unexpected")
    return arrays, metadata


def _little(name: str, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    # ascontiguousarray would turn a scalar into a vector
    flat = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    if flat.dtype not in _BY_DTYPE:
        raise ValueError(f"{name!r} has dtype {array.dtype}, which safetensors files do not support")
    return flat


def _header(data: npt.NDArray[np.uint8]) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
    if len(data) < _LENGTH_BYTES or length > min(len(data) - _LENGTH_BYTES, _MAX_HEADER_BYTES):
        raise ValueError("the header of the array file is incomplete")
    begin = _LENGTH_BYTES + length
    try:
        header = json.loads(data[_LENGTH_BYTES:begin].tobytes())
    except (ValueError, RecursionError):
        raise ValueError("the header of the array file is not JSON") from None
    if not isinstance(header, dict):
        raise ValueError("the header of the array file is not a JSON object")
    return header, begin


def _place(item: tuple[str, Any]) -> tuple[int, int]:
    try:
        start, end = item[1]["data_offsets"]
        if {type(start), type(end)} != {int} or not isinstance(item[1]["shape"], list) or "dtype" not in item[1]:
            raise ValueError
    except (TypeError, KeyError, ValueError):
        raise ValueError(f"{item[0]!r} has an invalid description in the header") from None
    return start, end


def _view(data: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> npt.NDArray[np.generic]:
    """Return an array, copied if it is not aligned. Files of other writers may contain unaligned arrays."""
    aligned = data if data.ctypes.data % dtype.itemsize == 0 else data.copy()
    return aligned.view(dtype)
