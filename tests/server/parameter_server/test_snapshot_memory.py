"""Copies into memory that is already allocated."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.server.parameter_server.shard.state import SnapshotMemory


def test_copies_are_read_only_and_independent() -> None:
    arrays = {"vector": np.arange(4, dtype=np.float32), "count": np.array([7])}
    copies = SnapshotMemory(arrays)
    copies.touch()
    arrays["count"] += 1
    copied = copies.fill(arrays)
    arrays["vector"] += 1
    np.testing.assert_array_equal(copied["vector"], [0, 1, 2, 3])
    np.testing.assert_array_equal(copied["count"], [8])
    assert {name: array.dtype for name, array in copied.items()} == {
        name: array.dtype for name, array in arrays.items()
    }
    with pytest.raises(ValueError, match="read-only"):
        copied["vector"][0] = 1
