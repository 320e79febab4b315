"""Converters between numpy arrays and wire arrays, and the table of their dtypes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from relaax.rlx import rlx_pb2
from relaax.rlx.array_spaces import Leaf
from relaax.rlx.errors import ErrorCode, ProtocolError, too_many_axes

MAX_AXES = 8  # of a leaf of a space; an array has one more, the axis N

# Wire number -> little-endian dtype. RLX has no other dtypes.
DTYPES: dict[int, np.dtype[Any]] = {
    rlx_pb2.DTYPE_BOOL: np.dtype("?"),
    rlx_pb2.DTYPE_UINT8: np.dtype("u1"),
    rlx_pb2.DTYPE_UINT16: np.dtype("<u2"),
    rlx_pb2.DTYPE_UINT32: np.dtype("<u4"),
    rlx_pb2.DTYPE_UINT64: np.dtype("<u8"),
    rlx_pb2.DTYPE_INT8: np.dtype("i1"),
    rlx_pb2.DTYPE_INT16: np.dtype("<i2"),
    rlx_pb2.DTYPE_INT32: np.dtype("<i4"),
    rlx_pb2.DTYPE_INT64: np.dtype("<i8"),
    rlx_pb2.DTYPE_FLOAT16: np.dtype("<f2"),
    rlx_pb2.DTYPE_FLOAT32: np.dtype("<f4"),
    rlx_pb2.DTYPE_FLOAT64: np.dtype("<f8"),
}

_NUMBERS: dict[np.dtype[Any], int] = {dtype: number for number, dtype in DTYPES.items()}


def dtype_number(dtype: np.dtype[Any]) -> Any:
    """Return the wire number of a dtype. Raises ProtocolError (INVALID_VALUE) if RLX does not have it."""
    number = _NUMBERS.get(dtype.newbyteorder("<"))
    if number is None:
        raise ProtocolError(ErrorCode.INVALID_VALUE, f"arrays of {dtype} cannot be sent")
    return number


def dtype_of(number: int) -> np.dtype[Any]:
    """Return the dtype of a wire number. Raises ProtocolError (INVALID_VALUE) if the number is unknown."""
    dtype = DTYPES.get(number)
    if dtype is None:
        what = f"dtype {number} is not known" if number else "dtype is missing"
        raise ProtocolError(ErrorCode.INVALID_VALUE, f"{what}; there are 1 (DTYPE_BOOL) to 12 (DTYPE_FLOAT64)")
    return dtype


def write_array(array: Leaf, target: rlx_pb2.Array) -> None:
    """Copy an array into an empty wire array. Raises ProtocolError (INVALID_VALUE) if RLX does not have its dtype."""
    number = _NUMBERS.get(array.dtype)
    if number is None:
        number = dtype_number(array.dtype)
        array = array.astype(DTYPES[number])
    target.dtype = number  # type: ignore[assignment]
    target.shape.extend(array.shape)
    target.data = array.tobytes()


def read_array(source: rlx_pb2.Array) -> Leaf:
    """Return a read-only view of a wire array's bytes. Raises ProtocolError (INVALID_VALUE) if it is inconsistent."""
    dtype = DTYPES.get(source.dtype)
    if dtype is None:
        dtype = dtype_of(source.dtype)
    shape, data = tuple(source.shape), source.data
    # math.prod does not overflow: the product of a huge shape does not match the number of bytes received.
    if len(shape) > MAX_AXES + 1:
        raise ProtocolError(ErrorCode.INVALID_VALUE, too_many_axes("", len(shape), MAX_AXES + 1))
    if (needed := math.prod(shape) * dtype.itemsize) != len(data):
        raise ProtocolError(
            ErrorCode.INVALID_VALUE, f"data has {len(data)} bytes; {dtype} of shape {list(shape)} needs {needed}"
        )
    return np.frombuffer(data, dtype).reshape(shape)
