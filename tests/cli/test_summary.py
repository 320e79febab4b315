"""What is left of a run in its summary."""

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
    assert "cannot be read: the manifest is incomplete" in caplog.text
    summary = _summary(make_plan("da3c_gym_cartpole", []), directory, "failed", LAST_ASKED, LAST_ASKED)
    assert summary["checkpoint"] is None


def test_of_several_checkpoints_the_newest_that_can_be_read_counts(directory: RunDirectory) -> None:
    manager = CheckpointManager(LocalStore(directory.checkpoints))
    manager.save(80, {"shard-0": {"parameters": np.zeros(1, np.float32)}}, {"frames": 320, "updates": 8})
    assert counters(directory, LAST_ASKED) == (80, 320, 8)
    max(directory.checkpoints.rglob("manifest.json")).write_text("{")
    assert counters(directory, LAST_ASKED) == (50, 200, 5)


def lost(
    directory: RunDirectory,
    tmp_path: Path,
    log_tail: str,
    steps: int,
    final: Progress = LAST_ASKED,
    fresh: bool = False,
) -> str | None:
    """What is said of a parameter server that ended so after so many steps."""
    server = Process("parameter-server", tmp_path / "log", server=True)
    server.start([sys.executable, "-c", f"import os, sys; {log_tail}"])
    assert server.wait(60)
    final = dataclasses.replace(final, global_step=steps)
    return _lost_steps_error(
        _summary(make_plan("da3c_gym_cartpole", []), directory, "max_steps", final, final), final, server, fresh
    )


def test_steps_that_are_lost_are_said_with_the_reason_and_the_way_out(directory: RunDirectory, tmp_path: Path) -> None:
    assert lost(directory, tmp_path, "sys.exit(0)", 50) is None
    failed = "print('parameter-server last checkpoint failed: cannot write x: No space left on device'); sys.exit(1)"
    sentence = lost(directory, tmp_path, failed, 130_050)
    assert sentence == (
        "130,000 of 130,050 steps are lost, because the last checkpoint could not be written: cannot write x: No space "
        f"left on device. Fix that (free space in {directory.path}, if it is full), and repeat the same command: "
        f"it resumes at step 50, from {directory.checkpoints}/00000001-50/manifest.json"
    )
    assert "repeat the same command without --fresh:" in str(lost(directory, tmp_path, failed, 130_050, fresh=True))


def test_a_parameter_server_that_was_killed_at_the_very_end_may_have_lost_steps(
    directory: RunDirectory, tmp_path: Path
) -> None:
    killed = "os.kill(os.getpid(), 9)"
    late = dataclasses.replace(LAST_ASKED, checkpoint_error="it was full")
    sentence = str(lost(directory, tmp_path, killed, 70, late))
    assert "20 of 70 steps are lost" in sentence
    assert "the parameter server ended with SIGKILL; error before that: it was full" in sentence
    sentence = str(lost(directory, tmp_path, killed, 50))
    assert sentence.startswith("steps may be lost, because")


def test_a_checkpoint_that_is_written_and_cannot_be_read_is_lost(directory: RunDirectory, tmp_path: Path) -> None:
    for manifest in directory.checkpoints.rglob("manifest.json"):
        manifest.write_text("{")
    sentence = str(lost(directory, tmp_path, "sys.exit(0)", 50))
    assert "50 of 50 steps are lost" in sentence
    assert sentence.endswith("there is no earlier checkpoint, so it starts over")


def test_the_conclusion_names_what_is_there(directory: RunDirectory) -> None:
    plan = make_plan("da3c_gym_cartpole", [])
    summary = _summary(plan, directory, "interrupted", LAST_ASKED, LAST_ASKED)
    checkpoint = f"checkpoint {summary['checkpoint']}"
    _, *lines = _conclusion(summary, plan, directory).splitlines()
    assert lines == [checkpoint, f"score it: {shlex.join(['relaax', 'eval', *directory.eval_arguments])}"]
    _, *lines = _conclusion(summary | {"status": "failed"}, plan, directory).splitlines()
    assert lines == [checkpoint], "a failure is not to be scored"
    directory.metrics.mkdir()
    (directory.metrics / "events").touch()
    (line,) = _conclusion(summary | {"checkpoint": None}, plan, directory).splitlines()[1:]
    assert line == f"tensorboard --logdir {directory.metrics}"
