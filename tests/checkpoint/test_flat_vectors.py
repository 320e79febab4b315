from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaax.checkpoint import Checkpoint, Damaged
from relaax.checkpoint.checkpoint import full_vector, vector_length, vector_range

VECTOR = np.arange(10, dtype=np.float32)


def checkpoint(*ranges: tuple[int, int], missing: int | None = None) -> Checkpoint:
    shards = [{"part": f"shard-{i}", "start": start, "end": end} for i, (start, end) in enumerate(ranges)]
    parts: dict[str, Any] = {
        f"shard-{i}": {"parameters": VECTOR[start:end]} for i, (start, end) in enumerate(ranges) if i != missing
    }
    return Checkpoint("00000001-1", parts, {"shards": shards})


@pytest.mark.parametrize("shards", [1, 2, 3, 10, 12])
def test_vectors_are_joined_from_any_number_of_shards(shards: int) -> None:
    ranges = [(i * 10 // shards, (i + 1) * 10 // shards) for i in range(shards)]
    found = checkpoint(*ranges)
    assert vector_length(found.manifest) == 10
    np.testing.assert_array_equal(full_vector(found, "parameters"), VECTOR)
    np.testing.assert_array_equal(full_vector(checkpoint(*reversed(ranges)), "parameters"), VECTOR)
    for start in range(11):
        for end in range(start, 11):
            np.testing.assert_array_equal(vector_range(found, "parameters", start, end), VECTOR[start:end])


def test_a_vector_in_one_part_is_not_copied() -> None:
    assert np.shares_memory(full_vector(checkpoint((0, 10)), "parameters"), VECTOR)


def test_only_needed_parts_must_be_present() -> None:
    np.testing.assert_array_equal(
        vector_range(checkpoint((0, 4), (4, 7), (7, 10), missing=0), "parameters", 5, 9), VECTOR[5:9]
    )


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (checkpoint((0, 4), (5, 10)), "one ends at 4, the next begins at 5"),
        (checkpoint((0, 4), (3, 10)), "one ends at 4, the next begins at 3"),
        (checkpoint((2, 10)), "one ends at 0, the next begins at 2"),
        (checkpoint((0, 4), (4, 10), missing=1), "part shard-1 has nothing for parameters; 6 elements are expected"),
        (
            checkpoint((0, 4), (4, 11)),
            r"part shard-1 has an array of shape \[6\] for parameters; 7 elements are expected",
        ),
        (Checkpoint("00000001-1", {}, {}), "does not describe its shards"),
        (Checkpoint("00000001-1", {}, {"shards": [{"start": "x"}]}), "does not describe its shards"),
    ],
)
def test_inconsistent_parts_are_damaged(wrong: Checkpoint, sentence: str) -> None:
    with pytest.raises(Damaged, match=sentence):
        full_vector(wrong, "parameters")


def test_a_range_beyond_the_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="elements 5 to 11 are not within the vector of 10"):
        vector_range(checkpoint((0, 10)), "parameters", 5, 11)
