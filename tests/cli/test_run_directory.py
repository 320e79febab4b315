"""The directory of a run: resumed, moved aside, locked and written."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from relaax.checkpoint import LocalStore, StoreError
from relaax.cli.run.plan import make_plan
from relaax.cli.run.run_directory import RunDirectory, SummaryNotWritten
from relaax.configuration import ConfigurationError, load_configuration
from relaax.hosting.loader import find_algorithm

CONFIG = "da3c_gym_cartpole"


def write_run(path: Path, status: str | None = None, env_steps: int = 1000) -> None:
    """Write the directory of a run: a configuration, a checkpoint, and a summary if `status` is given."""
    directory = RunDirectory(path)
    directory.open(fresh=False, max_steps=env_steps)
    directory.write_configuration(make_plan(CONFIG, []))
    (directory.checkpoints / "one").write_text("parameters")
    if status is not None:
        directory.write_summary({"status": status, "env_steps": env_steps}, None)
    directory.close()


def open_message(path: Path, fresh: bool = False, max_steps: int = 1) -> str:
    """Open and close a run directory; return the message for the user."""
    directory = RunDirectory(path)
    try:
        return directory.open(fresh, max_steps)
    finally:
        directory.close()


def is_resumed(path: Path, max_steps: int = 10_000, fresh: bool = False) -> bool:
    """Return whether the next run resumes; if not, check that the old run was moved aside and not lost."""
    sentence = open_message(path, fresh, max_steps)
    resumed = (path / "checkpoints" / "one").exists()
    assert ("resuming" in sentence) == resumed
    if not resumed:
        (aside,) = path.parent.glob(f"{path.name}.*")
        assert (aside / "checkpoints" / "one").read_text() == "parameters"
        assert str(aside) in sentence
    return resumed


@pytest.mark.parametrize("place", [{"checkpoint_dir": "there"}, {"checkpoint_aws_s3": ["bucket", "key"]}, {}])
def test_replay_checkpoints_are_kept_in_the_run_directory(tmp_path: Path, place: dict[str, Any]) -> None:
    document = {
        "relaax-replay-server": {"shards": 1, **place},
        "relaax-learner": {"learners": 1},
        "relaax-run": {"environment": "OpenAI_Gym", "name": "CartPole-v1"},
        "algorithm": {"path": "apex"},
    }
    file = tmp_path / "experiment.yaml"
    file.write_text(json.dumps(document))
    directory = RunDirectory(tmp_path / "run")
    directory.open(fresh=False, max_steps=1)
    try:
        directory.write_configuration(make_plan(str(file), []))
    finally:
        directory.close()
    shutil.move(tmp_path / "run", tmp_path / "moved")
    settings = load_configuration(tmp_path / "moved" / "configuration.yaml").replay_server
    expected = str(tmp_path / "moved" / "replay") if place else None
    assert (settings.checkpoint_dir, settings.checkpoint_aws_s3) == (expected, None)


def test_replay_memory_without_a_checkpoint_is_deleted(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.open(fresh=False, max_steps=1)
    directory.write_configuration(make_plan(CONFIG, []))
    (directory.replay / "shard-0-of-1").mkdir(parents=True)
    directory.close()
    assert "resuming" not in open_message(tmp_path / "run")
    assert not directory.replay.exists()


@pytest.mark.parametrize("status", [None, "interrupted", "failed"])
def test_unfinished_run_is_resumed(tmp_path: Path, status: str | None) -> None:
    write_run(tmp_path / "run", status)
    assert is_resumed(tmp_path / "run")


def test_finished_run_is_moved_aside(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "target_reached")
    assert not is_resumed(tmp_path / "run")


def test_refused_resume_restores_configuration_and_summary(tmp_path: Path) -> None:
    write_run(tmp_path, "max_time")
    before = {name: (tmp_path / name).read_bytes() for name in ("configuration.yaml", "summary.json")}
    directory = RunDirectory(tmp_path)
    directory.open(fresh=False, max_steps=10_000)
    directory.write_configuration(make_plan(CONFIG, ["algorithm.rewards_gamma=0.5"]))
    assert directory.restore_resumed()
    directory.close()
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert (tmp_path / "configuration.yaml").stat().st_mode & 0o777 == 0o600


def test_working_directory_is_not_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "project", "target_reached")
    (tmp_path / "project" / "sources").mkdir()
    for place in ("project", "project/sources"):
        monkeypatch.chdir(tmp_path / place)
        with pytest.raises(ConfigurationError, match="the working directory, so it is not moved aside: --run-dir"):
            open_message(tmp_path / "project")
    assert (tmp_path / "project" / "checkpoints" / "one").exists()


def test_directory_of_an_active_run_is_not_moved_aside(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "target_reached")
    inner = RunDirectory(tmp_path / "runs" / "inner")
    inner.open(fresh=False, max_steps=1)
    with pytest.raises(ConfigurationError, match="the active run inner, so it is not moved aside: --run-dir"):
        open_message(tmp_path / "runs")
    inner.close()
    assert not is_resumed(tmp_path / "runs", 1)


def test_run_that_reached_a_limit_resumes_under_a_higher_one(tmp_path: Path) -> None:
    write_run(tmp_path / "lower", "max_steps", 1000)
    assert is_resumed(tmp_path / "lower", max_steps=1001)
    write_run(tmp_path / "same", "max_steps", 1000)
    assert not is_resumed(tmp_path / "same", max_steps=1000)


def test_run_that_reached_its_time_limit_is_resumed(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "max_time", 1000)
    assert is_resumed(tmp_path / "run")


def test_unfinished_run_of_another_task_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "interrupted")
    other = make_plan("da3c_gym_acrobot", [])
    with pytest.raises(
        ConfigurationError, match="unfinished run of name CartPole-v1, not of name Acrobot-v1: --run-dir"
    ):
        RunDirectory(tmp_path / "run").open(False, 10_000, other.task)
    directory = RunDirectory(tmp_path / "run")
    assert "resuming" in directory.open(False, 10_000, make_plan(CONFIG, []).task)
    directory.close()


def test_run_without_a_checkpoint_does_not_block_another_task(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "failed")
    (tmp_path / "run" / "checkpoints" / "one").rename(tmp_path / "run" / "checkpoints" / "lease.json")
    directory = RunDirectory(tmp_path / "run")
    assert directory.open(False, 10_000, make_plan("da3c_gym_acrobot", []).task) == f"run directory {tmp_path / 'run'}"
    directory.close()


def test_summary_check_creates_no_file(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.check_summary_writable(tmp_path / "summary.json")
    with pytest.raises(ConfigurationError, match="--summary"):
        directory.check_summary_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "before", "wanted"),
    [
        ("run.kwargs.sutton_barto_reward=true", "kwargs {}", 'kwargs {"sutton_barto_reward": true}'),
        ("run.wrappers=[ClipReward: {max_reward: 1}]", "wrappers []", 'wrappers [{"ClipReward": {"max_reward": 1}}]'),
    ],
)
def test_other_keys_of_the_environment_are_another_task(tmp_path: Path, key: str, before: str, wanted: str) -> None:
    write_run(tmp_path / "run", "interrupted")
    with pytest.raises(ConfigurationError) as refused:
        RunDirectory(tmp_path / "run").open(False, 10_000, make_plan(CONFIG, [key]).task)
    assert f"unfinished run of {before}, not of {wanted}: --run-dir" in str(refused.value)
    directory = RunDirectory(tmp_path / "made")
    directory.open(fresh=False, max_steps=1)
    directory.write_configuration(make_plan(CONFIG, [key]))
    (directory.checkpoints / "one").write_text("parameters")
    directory.close()
    assert "resuming" in directory.open(False, 10_000, make_plan(CONFIG, [key]).task)
    directory.close()


def test_unfinished_run_is_not_resumed_if_fresh(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "interrupted")
    assert not is_resumed(tmp_path / "run", fresh=True)


def test_runs_moved_aside_in_one_second_have_different_names(tmp_path: Path) -> None:
    for _ in range(3):
        write_run(tmp_path / "run", "target_reached")
        directory = RunDirectory(tmp_path / "run")
        directory.open(fresh=False, max_steps=1)
        directory.close()
    assert len(list(tmp_path.glob("run.*"))) == 3


def test_run_with_a_damaged_summary_is_resumed(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "target_reached")
    (tmp_path / "run" / "summary.json").write_text('{"status": "targ')
    assert is_resumed(tmp_path / "run")


def test_summary_is_deleted_when_a_run_is_resumed(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "interrupted")
    assert is_resumed(tmp_path / "run")
    assert not (tmp_path / "run" / "summary.json").exists()


def test_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ConfigurationError, match="no file locks .No locks available.: mount it with locks") as refused:
        open_message(tmp_path / "run", fresh=True)
    assert "another run" not in str(refused.value)
    with pytest.raises(StoreError, match="lock: its file system has no file locks .No locks available.: mount it"):
        LocalStore(tmp_path).put_if("lease.json", b"x", None)


def test_directory_in_use_is_refused_and_unchanged(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path / "run")
    first.open(fresh=False, max_steps=1)
    with pytest.raises(ConfigurationError, match="in use by another run; --run-dir"):
        open_message(tmp_path / "run", fresh=True)
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]
    first.close()
    open_message(tmp_path / "run")


def test_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="run directory .*/run cannot be (opened|prepared): "):
        RunDirectory(tmp_path / "run").open(fresh=False, max_steps=1)
    assert not (tmp_path / "elsewhere").exists()


def test_directory_that_cannot_be_created_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"run directory .*file/run"):
        RunDirectory(tmp_path / "file" / "run").open(fresh=False, max_steps=1)


def test_written_configuration_has_the_overrides(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.open(fresh=False, max_steps=1)
    directory.close()
    plan = make_plan(CONFIG, ["algorithm.seed=5", "rlx-server.heartbeat=3", "run.checkpoint_interval=7"])
    directory.configuration.touch(0o644)
    directory.write_configuration(plan)
    assert directory.configuration.stat().st_mode & 0o777 == 0o600, "it may hold secrets"
    written = load_configuration(directory.configuration)
    assert written.parameter_server.bind == written.rlx_server.bind == "127.0.0.1:0"
    assert written.parameter_server.checkpoint_dir == str(tmp_path / "run" / "checkpoints")
    assert written.parameter_server.metrics_dir == str(tmp_path / "run" / "metrics")
    assert written.parameter_server.checkpoint_interval == 7
    assert written.rlx_server.heartbeat == 3
    assert written.algorithm["seed"] == 5
    assert written.run == plan.run.model_copy(update={"path": written.run.path})
    assert written.run.path == [str(plan.configuration.folder), str(Path.cwd())]
    assert yaml.safe_load(directory.configuration.read_text())["algorithm"]["path"] == str(plan.algorithm)


@pytest.mark.parametrize("how", [shutil.move, shutil.copytree])
def test_moved_or_copied_run_names_its_own_folders(
    tmp_path: Path, how: Callable[[Path, Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", "target_reached")
    how(tmp_path / "run", tmp_path / "another")
    monkeypatch.chdir("/")
    server = load_configuration(tmp_path / "another" / "configuration.yaml").parameter_server
    assert server.checkpoint_dir == str(tmp_path / "another" / "checkpoints")
    assert server.metrics_dir == str(tmp_path / "another" / "metrics")
    assert str(tmp_path) not in (tmp_path / "another" / "configuration.yaml").read_text()


def test_algorithm_in_the_run_directory_has_a_relative_path(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    algorithm = tmp_path / "run" / "mine.py"
    keys = "class Config(ConfigBase):\n    model_config = {'extra': 'allow'}\n"
    algorithm.write_text(f"from relaax.algorithm_base import ConfigBase\n{keys}")
    directory = RunDirectory(tmp_path / "run")
    directory.write_configuration(make_plan(CONFIG, [f"algorithm.path={algorithm}"]))
    found = load_configuration(directory.configuration)
    assert found.algorithm_path == "mine.py"
    assert find_algorithm(found.algorithm_path, found.folder) == algorithm


def test_summary_is_also_written_to_the_requested_file(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.open(fresh=False, max_steps=1)
    directory.close()
    directory.write_summary({"status": "failed"}, tmp_path / "new" / "summary.json")
    assert json.loads((tmp_path / "new" / "summary.json").read_text()) == {"status": "failed"}
    assert json.loads(directory.summary.read_text()) == {"status": "failed"}
    (tmp_path / "file").write_text("")
    with pytest.raises(SummaryNotWritten, match=r"cannot be written to .*file/summary.json: File exists"):
        directory.write_summary({"status": "interrupted"}, tmp_path / "file" / "summary.json")
    assert json.loads(directory.summary.read_text()) == {"status": "interrupted"}, (
        "the summary of the run directory is still written"
    )


def test_summary_check_does_not_change_existing_files(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.check_summary_writable(tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()
    (tmp_path / "old.json").write_text("{}")
    directory.check_summary_writable(tmp_path / "old.json")
    assert (tmp_path / "old.json").read_text() == "{}"


def test_summary_is_written_through_links_and_to_devices(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    (tmp_path / "link.json").symlink_to("file.json")
    directory.write_summary({"status": "failed"}, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "file.json").read_text()) == {"status": "failed"}
    directory.write_summary({"status": "failed"}, Path("/dev/null"))
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("summary", ["[]", "{}", '{"status": "max_steps", "env_steps": null}'])
def test_run_with_an_invalid_summary_is_resumed(tmp_path: Path, summary: str) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text(summary)
    assert is_resumed(tmp_path / "run")
