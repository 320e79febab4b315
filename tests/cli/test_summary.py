"""The summary of a run: its counters, lost steps and conclusion."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.cli.run.experiment import _conclusion, _lost_steps_error, _summary
from relaax.cli.run.plan import make_plan
from relaax.cli.run.progress import Progress
from relaax.cli.run.run_directory import RunDirectory
from relaax.supervision.process import Process

LAST_POLLED = Progress(global_step=40, frames=160, updates=4, episodes=3)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """A run directory with a checkpoint of 50 steps."""
    directory = RunDirectory(tmp_path / "run")
    manager = CheckpointManager(LocalStore(directory.checkpoints))
    manager.save(50, {"shard-0": {"parameters": np.zeros(1, np.float32)}}, {"frames": 200, "updates": 5})
    return directory


def counters(directory: RunDirectory, final: Progress) -> tuple[int, int, int]:
    summary = _summary(make_plan("da3c_gym_cartpole", []), directory, "interrupted", LAST_POLLED, final)
    assert summary["episodes"] == 3
    return summary["env_steps"], summary["frames"], summary["updates"]


def test_counters_are_those_of_the_last_checkpoint(directory: RunDirectory) -> None:
    assert counters(directory, LAST_POLLED) == (50, 200, 5)


def test_steps_after_the_last_checkpoint_count(directory: RunDirectory) -> None:
    assert counters(directory, Progress(global_step=60, frames=240, updates=6)) == (60, 240, 6)


def test_unreadable_checkpoint_is_not_named(directory: RunDirectory, caplog: pytest.LogCaptureFixture) -> None:
    for manifest in directory.checkpoints.rglob("manifest.json"):
        manifest.write_text("{")
    assert counters(directory, LAST_POLLED) == (40, 160, 4)
    assert "cannot be read: the manifest is incomplete" in caplog.text
    summary = _summary(make_plan("da3c_gym_cartpole", []), directory, "failed", LAST_POLLED, LAST_POLLED)
    assert summary["checkpoint"] is None


def test_newest_readable_checkpoint_counts(directory: RunDirectory) -> None:
    manager = CheckpointManager(LocalStore(directory.checkpoints))
    manager.save(80, {"shard-0": {"parameters": np.zeros(1, np.float32)}}, {"frames": 320, "updates": 8})
    assert counters(directory, LAST_POLLED) == (80, 320, 8)
    max(directory.checkpoints.rglob("manifest.json")).write_text("{")
    assert counters(directory, LAST_POLLED) == (50, 200, 5)


def lost_steps_error(
    directory: RunDirectory,
    tmp_path: Path,
    code: str,
    steps: int,
    final: Progress = LAST_POLLED,
    fresh: bool = False,
) -> str | None:
    """Return the error for a parameter server that ran `code` and ended after `steps` steps."""
    server = Process("parameter-server", tmp_path / "log", server=True)
    server.start([sys.executable, "-c", f"import os, sys; {code}"])
    assert server.wait(60)
    final = dataclasses.replace(final, global_step=steps)
    return _lost_steps_error(
        _summary(make_plan("da3c_gym_cartpole", []), directory, "max_steps", final, final), final, server, fresh
    )


def test_lost_steps_are_reported_with_cause_and_way_out(directory: RunDirectory, tmp_path: Path) -> None:
    assert lost_steps_error(directory, tmp_path, "sys.exit(0)", 50) is None
    failed = "print('parameter-server last checkpoint failed: cannot write x: No space left on device'); sys.exit(1)"
    sentence = lost_steps_error(directory, tmp_path, failed, 130_050)
    assert sentence == (
        "130,000 of 130,050 steps are lost, because the last checkpoint could not be written: cannot write x: No space "
        f"left on device. Fix that (free space in {directory.path}, if it is full), and repeat the same command: "
        f"it resumes at step 50, from {directory.checkpoints}/00000001-50/manifest.json"
    )
    assert "repeat the same command without --fresh:" in str(
        lost_steps_error(directory, tmp_path, failed, 130_050, fresh=True)
    )


def test_parameter_server_killed_at_the_end_may_lose_steps(directory: RunDirectory, tmp_path: Path) -> None:
    killed = "os.kill(os.getpid(), 9)"
    late = dataclasses.replace(LAST_POLLED, checkpoint_error="it was full")
    sentence = str(lost_steps_error(directory, tmp_path, killed, 70, late))
    assert "20 of 70 steps are lost" in sentence
    assert "the parameter server ended with SIGKILL; error before that: it was full" in sentence
    sentence = str(lost_steps_error(directory, tmp_path, killed, 50))
    assert sentence.startswith("steps may be lost, because")


def test_steps_of_an_unreadable_checkpoint_are_lost(directory: RunDirectory, tmp_path: Path) -> None:
    for manifest in directory.checkpoints.rglob("manifest.json"):
        manifest.write_text("{")
    sentence = str(lost_steps_error(directory, tmp_path, "sys.exit(0)", 50))
    assert "50 of 50 steps are lost" in sentence
    assert sentence.endswith("there is no earlier checkpoint, so it starts over")


def test_conclusion_names_existing_results(directory: RunDirectory) -> None:
    plan = make_plan("da3c_gym_cartpole", [])
    summary = _summary(plan, directory, "interrupted", LAST_POLLED, LAST_POLLED)
    checkpoint = f"checkpoint {summary['checkpoint']}"
    _, *lines = _conclusion(summary, plan, directory).splitlines()
    assert lines == [checkpoint, f"score it: {shlex.join(['relaax', 'eval', *directory.eval_arguments])}"]
    _, *lines = _conclusion(summary | {"status": "failed"}, plan, directory).splitlines()
    assert lines == [checkpoint], "a failed run has no command to score it"
    directory.metrics.mkdir()
    (directory.metrics / "events").touch()
    (line,) = _conclusion(summary | {"checkpoint": None}, plan, directory).splitlines()[1:]
    assert line == f"tensorboard --logdir {directory.metrics}"
