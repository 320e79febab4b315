"""Milestones: the checkpoints of opponents, which are kept longer than others."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, Milestones
from relaax.checkpoint.manifest import milestones
from support.stores import MemoryStore


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([], []),
        ([0, 60, 99], []),
        ([0, 100, 150, 199, 200], [200, 100]),
        ([30, 130, 180, 420, 450], [420, 130]),
    ],
)
def test_first_checkpoints_after_multiples_are_milestones(steps: list[int], found: list[int]) -> None:
    ids = [f"{number:08d}-{step}" for number, step in enumerate(steps, 1)]
    assert [int(one.partition("-")[2]) for one in milestones(reversed(ids), 100)] == found


def test_milestones_are_in_the_order_of_their_age() -> None:
    ids = ["00000001-100-f1", "00000002-210-f1", "00000003-310-f1", "00000003-190-f2", "00000004-330-f2"]
    assert milestones(ids, 100) == ["00000003-310-f1", "00000002-210-f1", "00000001-100-f1"]
    assert milestones([*ids, "00000005-400-f2"], 100)[0] == "00000005-400-f2"


def test_newest_milestones_are_kept_beside_newest_checkpoints() -> None:
    store = MemoryStore()
    manager = CheckpointManager(store, keep=2, keep_best=1, milestones=Milestones(3, 100))
    for step in range(20, 800, 30):
        parts = {"shard-0": {"parameters": np.full(4, step, np.float32)}}
        manager.save(step, parts, {"mean_return": 9.0 if step == 50 else 1.0})
    kept = [int(one.partition("-")[2]) for one in manager.published()]
    assert kept == [770, 740, 710, 620, 500, 50]
    assert len(store.list()) == 2 * len(kept), "nothing is left of the others"
