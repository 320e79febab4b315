"""Copies into memory that is there already."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.server.parameter_server.shard.state import SnapshotMemory


def test_copies_stay_as_they_are() -> None:
    here = {"vector": np.arange(4, dtype=np.float32), "count": np.array([7])}
    copies = SnapshotMemory(here)
    copies.touch()
    here["count"] += 1
    taken = copies.fill(here)
    here["vector"] += 1
    np.testing.assert_array_equal(taken["vector"], [0, 1, 2, 3])
    np.testing.assert_array_equal(taken["count"], [8])
    assert {name: array.dtype for name, array in taken.items()} == {name: array.dtype for name, array in here.items()}
    with pytest.raises(ValueError, match="read-only"):
        taken["vector"][0] = 1
