from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from relaax.rlx import ErrorCode, ProtocolError, rlx_pb2
from relaax.rlx.wire.arrays import DTYPES, MAX_AXES, read_array, write_array

arrays = st.sampled_from(list(DTYPES.values())).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=MAX_AXES + 1, min_side=0, max_side=2))
)


def written(array: np.ndarray) -> rlx_pb2.Array:
    wire = rlx_pb2.Array()
    write_array(array, wire)
    return wire


def test_dtype_table_matches_the_proto_enumeration() -> None:
    assert set(DTYPES) == {number for number in rlx_pb2.Dtype.values() if number}
    for number, dtype in DTYPES.items():
        assert rlx_pb2.Dtype.Name(number) == f"DTYPE_{dtype.name.upper()}"  # type: ignore[arg-type]


@given(arrays)
def test_arrays_round_trip(array: np.ndarray) -> None:
    again = read_array(written(array))
    assert (again.dtype, again.shape, again.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert not again.flags.writeable


def test_bytes_are_little_endian_in_c_order() -> None:
    array = np.array([[1, 2], [3, 4]], np.uint16)
    expected = bytes([1, 0, 2, 0, 3, 0, 4, 0])
    for same in (array, array.astype(">u2"), np.asfortranarray(array), array[::-1][::-1]):
        assert written(same).data == expected


def test_read_array_does_not_copy_the_data() -> None:
    wire = written(np.zeros((64, 1024), np.float32))
    assert read_array(wire).base is not None


@pytest.mark.parametrize(
    "wire",
    [
        rlx_pb2.Array(dtype="DTYPE_FLOAT32", shape=[2], data=bytes(7)),
        rlx_pb2.Array(dtype="DTYPE_FLOAT32", shape=[2], data=bytes(12)),
        rlx_pb2.Array(dtype="DTYPE_UINT8", shape=[2**32 - 1] * 8),
        rlx_pb2.Array(dtype="DTYPE_UINT8", shape=[2**16] * 4),
        rlx_pb2.Array(dtype="DTYPE_UINT8", shape=[1] * 10, data=b"x"),
        rlx_pb2.Array(shape=[1], data=b"x"),
        rlx_pb2.Array(dtype=77, shape=[1], data=b"x"),  # type: ignore[arg-type]
    ],
)
def test_inconsistent_array_is_refused(wire: rlx_pb2.Array) -> None:
    with pytest.raises(ProtocolError) as caught:
        read_array(wire)
    assert caught.value.code is ErrorCode.INVALID_VALUE


def test_unsupported_dtype_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="complex64"):
        written(np.zeros(1, np.complex64))
