"""Array files, compared with the library `safetensors`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.checkpoint.array_file import from_bytes, to_buffers

pytestmark = pytest.mark.checks("relaax/checkpoint")

DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]
ARRAYS = st.dictionaries(
    st.text(max_size=8),
    st.sampled_from(DTYPES).flatmap(
        lambda code: hnp.arrays(code, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
    ),
    max_size=6,
)


def same(left: Mapping[str, npt.NDArray[Any]], right: Mapping[str, npt.NDArray[Any]]) -> None:
    assert set(left) == set(right)
    for name, array in left.items():
        assert (array.dtype, array.shape) == (right[name].dtype, right[name].shape)
        assert array.tobytes() == right[name].tobytes()


def whole(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


@given(ARRAYS)
@settings(max_examples=25, deadline=None)
def test_files_are_compatible_with_the_library(arrays: dict[str, npt.NDArray[Any]]) -> None:
    data = b"".join(to_buffers(arrays))
    same(safetensors.numpy.load(data), arrays)
    same(from_bytes(whole(data))[0], arrays)
    same(from_bytes(whole(safetensors.numpy.save(arrays)))[0], arrays)


def test_metadata_are_compatible_with_the_library(tmp_path: Path) -> None:
    data = b"".join(to_buffers({"x": np.arange(3, dtype=np.float32)}, {"configuration": "a: 1"}))
    (tmp_path / "x.safetensors").write_bytes(data)
    with safetensors.safe_open(tmp_path / "x.safetensors", "numpy") as file:
        assert file.metadata() == {"configuration": "a: 1"}
    assert from_bytes(whole(data))[1] == {"configuration": "a: 1"}


def test_contiguous_arrays_are_not_copied() -> None:
    vector = np.zeros(1000, np.float32)
    header, body = to_buffers({"parameters": vector})
    vector[3] = 7.0
    assert bytes(body) == vector.tobytes()
    assert len(header) % 8 == 0


def test_other_byte_orders_and_axis_orders_are_converted() -> None:
    arrays = {"big": np.arange(4, dtype=">f4"), "turned": np.arange(6, dtype=np.int64).reshape(2, 3).T}
    loaded = safetensors.numpy.load(b"".join(to_buffers(arrays)))
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)


def test_an_unsupported_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="'words' has dtype <U3, which safetensors files do not support"):
        to_buffers({"words": np.array(["abc"])})


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_corrupted_file_is_read_or_refused(data: st.DataObject) -> None:
    file = bytearray(b"".join(to_buffers({"x": np.arange(3, dtype=np.float32), "y": np.ones((2, 2))})))
    for at in data.draw(st.lists(st.integers(0, len(file) - 1), min_size=1, max_size=3)):
        file[at] = data.draw(st.integers(0, 255))
    del file[data.draw(st.integers(0, len(file))) :]
    with contextlib.suppress(ValueError):
        from_bytes(whole(bytes(file)))


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b'{"x":3}',
        b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}}',
        b'{"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,-4]}}',
        b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}',
        b'{"x":{"dtype":"Q9","shape":[2],"data_offsets":[0,8]}}',
        b'{"x":{"dtype":["F32"],"shape":[2],"data_offsets":[0,8]}}',
        b'{"x":{"dtype":"F32","shape":2,"data_offsets":[0,8]}}',
        b'{"x":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}',
        b'{"__metadata__":{"a":1}}',
        b"{}",
    ],
)
def test_invalid_headers_are_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        from_bytes(whole(len(header).to_bytes(8, "little") + header + bytes(8)))


@pytest.mark.slow
def test_other_threads_run_while_a_long_vector_is_saved(tmp_path: Path) -> None:
    """Saving and reading do not hold Python's lock: a counting thread is never blocked for long."""
    parts = {"shard-0": {"parameters": np.zeros(50_000_000, np.float32)}}
    gaps: list[float] = []
    done = threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not done.wait(0.001):
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    manager = CheckpointManager(LocalStore(tmp_path))
    saved = manager.save(1, parts, {})
    done.set()
    thread.join()
    print(f"longest pause of another thread: {1000 * max(gaps):.0f} ms")
    assert manager.load(saved.checkpoint_id).parts["shard-0"]["parameters"].shape == (50_000_000,)
