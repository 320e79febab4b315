from __future__ import annotations

import numpy as np
import pytest

from relaax.replay import replay_pb2 as pb
from relaax.replay.spec import Field, TableSpec
from relaax.replay.wire import from_bytes, inserted_columns, sampled_bytes, sampled_columns, to_bytes, to_messages

SPEC = TableSpec(
    "t",
    {"a": Field("float32", (2, 3)), "b": Field("bool"), "s": Field("uint8", (2, 2, 2), frames=2)},
    10,
    frame=(2, 2, 1),
)


def columns(count: int = 3) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "a": random.standard_normal((count, 2, 3)).astype(np.float32),
        "b": random.random(count) < 0.5,
        "s": np.arange(2 * count).reshape(count, 2),
    }


def test_columns_are_unchanged_by_encoding() -> None:
    for count in (3, 0):
        given = columns(count)
        read = inserted_columns(SPEC, count, to_messages(given))
        assert read.keys() == given.keys()
        for name, column in given.items():
            assert read[name].dtype == column.dtype
            np.testing.assert_array_equal(read[name], column)


def test_samples_have_stacks_instead_of_frame_numbers() -> None:
    given = columns() | {"s": np.arange(24, dtype=np.uint8).reshape(3, 2, 2, 2)}
    read = sampled_columns(SPEC, 3, to_messages(given))
    np.testing.assert_array_equal(read["s"], given["s"])
    assert sampled_bytes(SPEC) == 24 + 24 + 1 + 8


def test_numbers_are_encoded_as_little_endian() -> None:
    assert to_bytes(np.array([1], ">i4")) == b"\1\0\0\0"
    assert to_bytes(np.arange(6, dtype=np.int16).reshape(2, 3).T) == np.array([0, 3, 1, 4, 2, 5], "<i2").tobytes()


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a", bytes(71), "'a' must be 72 bytes of float32 .*, not 71 bytes"),
        ("a", bytes(73), "not 73 bytes"),
        ("a", b"", "not 0 bytes"),
        ("b", b"\0\1\2", "must be booleans: bytes 0 or 1"),
        ("s", bytes(24), "'s' must be 48 bytes of int64"),
    ],
)
def test_wrong_lengths_are_rejected(name: str, data: bytes, says: str) -> None:
    messages = [pb.Column(name=one.name, data=data if one.name == name else one.data) for one in to_messages(columns())]
    with pytest.raises(ValueError, match=says):
        inserted_columns(SPEC, 3, messages)


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "s", "s"], ["a", "b", "x"], []])
def test_wrong_columns_are_rejected(names: list[str]) -> None:
    with pytest.raises(ValueError, match=r"must be \['a', 'b', 's'\], each exactly once"):
        inserted_columns(SPEC, 0, [pb.Column(name=name) for name in names])


def test_decoded_numbers_are_a_read_only_view() -> None:
    read = from_bytes(bytes(8), ((), np.dtype(np.int64)), 1, "x")
    with pytest.raises(ValueError, match="read-only"):
        read[0] = 1
