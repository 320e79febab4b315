"""Evaluations of checkpoints: they decide which is the best, and protect a checkpoint under evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, Lease, LocalStore
from relaax.checkpoint import manager as copying
from relaax.checkpoint.evaluation import (
    WHOLE_MEAN,
    Evaluation,
    evaluation_key,
    in_progress,
    rank_of,
    ranked,
    read_evaluation,
    write_evaluation,
)
from relaax.metrics import RecentReturns


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "checkpoints")


def saved(manager: CheckpointManager, global_step: int, mean_return: float | None = None) -> str:
    manifest = {"mean_return": mean_return}
    return manager.save(global_step, {"shard-0": {"parameters": np.zeros(3, np.float32)}}, manifest).checkpoint_id


def test_written_evaluations_are_read(store: LocalStore) -> None:
    checkpoint_id = saved(CheckpointManager(store), 10)
    assert read_evaluation(store, checkpoint_id) is None
    found = Evaluation(30, 5.0, 1.5, 1.0, 2.0)
    write_evaluation(store, checkpoint_id, found)
    assert read_evaluation(store, checkpoint_id) == found


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"episodes": 3, "time": 1.0, "mean": NaN}', b'{"episodes": 3, "time": 1.0, "x": 2}']
)
def test_unreadable_evaluations_are_ignored(store: LocalStore, text: bytes) -> None:
    manager = CheckpointManager(store, keep=1)
    checkpoint_id = saved(manager, 10, 5.0)
    store.put(evaluation_key(checkpoint_id), text)
    assert read_evaluation(store, checkpoint_id) is None
    saved(manager, 20, 1.0)
    assert checkpoint_id in manager.published(), "still the best by mean return"


def test_evaluations_rank_before_mean_returns(store: LocalStore) -> None:
    manager = CheckpointManager(store, keep=1, keep_best=1)
    first = saved(manager, 10, 1.0)
    write_evaluation(store, first, Evaluation(30, 5.0, 90.0, 80.0, 95.0))
    second = saved(manager, 20, 50.0)
    assert manager.published() == [second, first]
    third = saved(manager, 30, 2.0)
    assert manager.published() == [third, first], "the second had the higher mean return, and no evaluation"
    write_evaluation(store, third, Evaluation(30, 5.0, 91.0, 80.0, 95.0))
    fourth = saved(manager, 40, 3.0)
    assert manager.published() == [fourth, third]


def test_a_checkpoint_under_evaluation_is_kept(store: LocalStore) -> None:
    manager = CheckpointManager(store, keep=1, keep_best=0)
    first = saved(manager, 10)
    write_evaluation(store, first, Evaluation(30, 5.0))
    second, third = saved(manager, 20), saved(manager, 30)
    assert manager.published() == [third, first]
    write_evaluation(store, third, Evaluation(30, 6.0))
    fourth = saved(manager, 40)
    assert manager.published() == [fourth, third]
    assert second not in {key.partition("/")[0] for key in store.list()}


def test_ranks_and_ties() -> None:
    returns = {"00000001-10": (True, 3.0), "00000002-20": None, "00000003-30": (True, 3.0)}
    assert ranked(returns, {}) == ["00000003-30", "00000001-10"]
    begun, ended = Evaluation(3, 1.0), Evaluation(3, 1.0, -5.0, -6.0, -4.0)
    assert ranked(returns, {"00000001-10": begun}) == ["00000003-30", "00000001-10"]
    assert ranked(returns, {"00000001-10": begun, "00000002-20": ended}) == ["00000002-20"]
    assert in_progress({"00000002-20": ended}) == set()
    early = {**returns, "00000004-40": rank_of(ended_with(9.0, 99)), "00000005-50": rank_of(ended_with(2.0, 100))}
    assert ranked(early, {}) == ["00000003-30", "00000001-10", "00000005-50", "00000004-40"]
    assert rank_of({"mean_return": 1.0}) == (True, 1.0)
    assert rank_of({"mean_return": None}) is None


def ended_with(mean: float, episodes: int) -> dict[str, Any]:
    return {"mean_return": mean, "returns": {"episodes": episodes}}


def test_a_whole_mean_is_a_full_window() -> None:
    returns = RecentReturns()
    for episode in range(1, WHOLE_MEAN + 1):
        assert returns.best is None
        returns.add(float(episode))
    assert returns.best == returns.mean


def test_a_copy_includes_the_evaluation(store: LocalStore, tmp_path: Path) -> None:
    manager = CheckpointManager(store)
    first, second = saved(manager, 10), saved(manager, 20)
    write_evaluation(store, first, Evaluation(30, 5.0, 90.0, 80.0, 95.0))
    target = LocalStore(tmp_path / "copy")
    lease = Lease(target)
    lease.acquire(0)
    for checkpoint_id in (first, second):
        copying.copy(store, target, checkpoint_id, lease)
    lease.release()
    assert read_evaluation(target, first) == read_evaluation(store, first)
    assert read_evaluation(target, second) is None
