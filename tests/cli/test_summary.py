"""What is left of a run in its summary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.cli.run.experiment import _conclusion, _summary
from relaax.cli.run.plan import make_plan
from relaax.cli.run.progress import Progress
from relaax.cli.run.run_directory import RunDirectory

LAST_ASKED = Progress(global_step=40, frames=160, updates=4, episodes=3)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """With a checkpoint of 50 steps."""
    directory = RunDirectory(tmp_path / "run")
    manager = CheckpointManager(LocalStore(directory.checkpoints))
    manager.save(50, {"shard-0": {"parameters": np.zeros(1, np.float32)}}, {"frames": 200, "updates": 5})
    return directory


def counters(directory: RunDirectory, final: Progress) -> tuple[int, int, int]:
    summary = _summary(make_plan("da3c_gym_cartpole", []), directory, "interrupted", LAST_ASKED, final)
    assert summary["episodes"] == 3
    return summary["env_steps"], summary["frames"], summary["updates"]


def test_the_counters_are_those_of_the_last_checkpoint(directory: RunDirectory) -> None:
    assert counters(directory, LAST_ASKED) == (50, 200, 5)


def test_steps_that_no_checkpoint_has_count_all_the_same(directory: RunDirectory) -> None:
    assert counters(directory, Progress(global_step=60, frames=240, updates=6)) == (60, 240, 6)


def test_a_checkpoint_that_cannot_be_read_is_not_named(
    directory: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    for manifest in directory.checkpoints.rglob("manifest.json"):
        manifest.write_text("{")
    assert counters(directory, LAST_ASKED) == (40, 160, 4)
    assert "cannot be read: the manifest is not whole" in caplog.text
    summary = _summary(make_plan("da3c_gym_cartpole", []), directory, "failed", LAST_ASKED, LAST_ASKED)
    assert summary["checkpoint"] is None


def test_the_conclusion_names_what_is_there(directory: RunDirectory) -> None:
    plan = make_plan("da3c_gym_cartpole", [])
    summary = _summary(plan, directory, "interrupted", LAST_ASKED, LAST_ASKED)
    assert _conclusion(summary, plan).splitlines()[1:] == [f"checkpoint {summary['checkpoint']}"]
    directory.metrics.mkdir()
    (directory.metrics / "events").touch()
    (line,) = _conclusion(summary | {"checkpoint": None}, plan).splitlines()[1:]
    assert line == f"tensorboard --logdir {directory.metrics}"
