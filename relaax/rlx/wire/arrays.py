"""Encode and decode arrays on the wire, by one table of element types."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from relaax.rlx import rlx_pb2
from relaax.rlx.array_spaces import Leaf
from relaax.rlx.errors import ErrorCode, ProtocolError

MAX_AXES = 8  # of a leaf of a space; arrays have one more, N

# Wire number -> numpy's type, little endian. The closed list: nothing else is an array of RLX.
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
    """Return the wire's number of an element type. Raises ProtocolError (INVALID_VALUE) for one not on the list."""
    number = _NUMBERS.get(dtype.newbyteorder("<"))
    if number is None:
        raise ProtocolError(ErrorCode.INVALID_VALUE, f"arrays of {dtype} cannot be sent")
    return number


def dtype_of(number: int) -> np.dtype[Any]:
    """Return the element type of a wire number. Raises ProtocolError (INVALID_VALUE) for one not on the list."""
    dtype = DTYPES.get(number)
    if dtype is None:
        what = f"dtype {number} is not known" if number else "dtype is missing"
        raise ProtocolError(ErrorCode.INVALID_VALUE, f"{what}; there are 1 (DTYPE_BOOL) to 12 (DTYPE_FLOAT64)")
    return dtype


def write_array(array: Leaf, target: rlx_pb2.Array) -> None:
    """Copy an array into an empty wire array."""
    number = _NUMBERS.get(array.dtype)
    if number is None:
        number = dtype_number(array.dtype)
        array = array.astype(DTYPES[number])
    target.dtype = number  # type: ignore[assignment]
    target.shape.extend(array.shape)
    target.data = array.tobytes()


def read_array(source: rlx_pb2.Array) -> Leaf:
    """Return a read-only view of the bytes of a wire array. Raises ProtocolError (INVALID_VALUE) if they do not fit."""
    dtype = DTYPES.get(source.dtype)
    if dtype is None:
        dtype = dtype_of(source.dtype)
    shape, data = tuple(source.shape), source.data
    # math.prod has no overflow: a shape of billions of elements simply does not match the bytes that came.
    if len(shape) > MAX_AXES + 1:
        raise ProtocolError(ErrorCode.INVALID_VALUE, f"shape has {len(shape)} axes; at most {MAX_AXES + 1} is allowed")
    if (needed := math.prod(shape) * dtype.itemsize) != len(data):
        raise ProtocolError(
            ErrorCode.INVALID_VALUE, f"data has {len(data)} bytes; {dtype} of shape {list(shape)} needs {needed}"
        )
    return np.frombuffer(data, dtype).reshape(shape)
