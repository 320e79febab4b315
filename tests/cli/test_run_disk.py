"""`relaax run` on a disk that is full, read-only or limited."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from relaax.cli.run.plan import make_plan
from relaax.cli.run.run_directory import RunDirectory, SummaryNotWritten
from relaax.configuration import ConfigurationError
from relaax.supervision.process import Process
from support.disks import BreakingDisk, Disk, breaking_disk, small_disk
from support.processes import wait_until
from support.run import PATIENCE, Run, Runs

pytestmark = pytest.mark.checks("relaax/cli/run", "relaax/supervision", "relaax/server", "relaax/checkpoint")

CONFIG = "da3c_gym_cartpole"
Cause = Callable[[], None]
checks_of_writers = pytest.mark.checks(
    *("relaax/cli/run", "relaax/checkpoint", "relaax/files.py"),
    *("relaax/server/parameter_server", "relaax/supervision"),
)


@pytest.fixture(params=["No space left on device", "Read-only file system", "File too large"])
def disk_error(request: pytest.FixtureRequest, disk: Disk) -> Iterator[tuple[str, Cause]]:
    """An error text of the operating system, and a function that causes the error on `disk`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    causes = {
        "No space left on device": disk.fill,
        "Read-only file system": disk.protect,
        "File too large": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1])),
    }
    yield request.param, causes[request.param]
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_failed_summary_write_keeps_the_old_summary(disk: Disk, disk_error: tuple[str, Cause]) -> None:
    words, cause = disk_error
    directory, also = RunDirectory(disk.path / "run"), disk.path / "summary.json"
    directory.path.mkdir()
    directory.write_summary({"status": "interrupted"}, also)
    before = files(disk.path)
    cause()
    with pytest.raises(SummaryNotWritten) as error:
        directory.write_summary({"status": "max_steps"}, also)
    for path in (directory.summary, also):
        assert f"the summary cannot be written to {path}: {words}" in str(error.value)
        assert json.loads(path.read_text()) == {"status": "interrupted"}
    assert files(disk.path) - {"filling"} == before, "no temporary file is left"


def test_failed_configuration_write_keeps_the_old_file(disk: Disk, disk_error: tuple[str, Cause]) -> None:
    words, cause = disk_error
    directory = RunDirectory(disk.path)
    directory.write_configuration(make_plan(CONFIG, []))
    before = directory.configuration.read_text()
    cause()
    with pytest.raises(ConfigurationError, match=f"configuration.yaml cannot be written: {words}"):
        directory.write_configuration(make_plan(CONFIG, ["run.clients=7"]))
    assert directory.configuration.read_text() == before
    assert files(disk.path) - {"filling"} == {"configuration.yaml"}


def test_run_directory_on_a_read_only_disk_is_refused(disk: Disk) -> None:
    directory = RunDirectory(disk.path / "run")
    directory.open(fresh=False, max_steps=1)
    directory.write_summary({"status": "interrupted"}, None)
    directory.close()
    disk.protect()
    with pytest.raises(
        ConfigurationError, match=r"run directory .*/run cannot be (opened|prepared): Read-only file system"
    ):
        RunDirectory(disk.path / "run").open(fresh=False, max_steps=1)


@pytest.mark.parametrize("server", [True, False])
def test_process_continues_if_its_log_is_full(disk: Disk, server: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Writing directly to a full disk would end the process; a pipe without a reader would block it."""
    process = Process("it", disk.path / "it.log", server=server)
    disk.fill()
    code = "print('it listening on 1.1.1.1:1')\nfor line in range(3000): print('x' * 99)\nopen('/dev/stdin').read()"
    process.start([sys.executable, "-c", code])
    assert process.wait(60)
    assert process.exit_code() == 0
    assert [record.getMessage() for record in caplog.records] == [
        f"{disk.path}/it.log cannot be written: No space left on device; the output of it is lost"
    ]
    assert process.address == ("1.1.1.1:1" if server else None)
    disk.free()
    process.start([sys.executable, "-c", "print('there is space')"])
    assert process.wait(60)
    assert process.log_tail().endswith("there is space")


def test_process_starts_without_its_log(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    disk.protect()
    process = Process("it", disk.path / "it.log")
    process.start([sys.executable, "-c", "print('hello')"])
    assert process.wait(60)
    assert process.exit_code() == 0
    assert process.log_tail() == f"  (no log: {disk.path}/it.log: No such file or directory)"
    assert "Read-only file system; the output of it is lost" in caplog.text


def test_log_tail_reports_output_lost_to_a_full_disk(disk: Disk) -> None:
    process = Process("it", disk.path / "it.log", server=True)
    disk.fill()
    process.start([sys.executable, "-c", "raise SystemExit('why it ended')"])
    assert process.wait(60)
    assert process.log_tail() == f"  (no log: {disk.path}/it.log: No space left on device)"


def fill_until_late(run: Run, disk: Disk) -> None:
    """Fill the disk repeatedly until a checkpoint fails, because deleted checkpoints free space."""

    def is_late(status: Any) -> bool:
        disk.fill()
        return "No space left on device" in status.checkpoint_error

    run.wait_for(is_late, "the checkpoint is late")


def manifests(run: Run) -> list[int]:
    return [json.loads(path.read_text())["global_step"] for path in run.directory.rglob("manifest.json")]


def expect_lost(run: Run, code: int, words: str) -> str:
    """Check that the run fails and reports its lost steps and the cause; return that sentence."""
    assert run.running.wait(300) == code, run.running.report()
    run.expect_nothing_left()
    assert "Traceback" not in run.running.stderr
    (sentence,) = [line for line in run.running.stderr.splitlines() if "steps are lost" in line]
    assert f"because the last checkpoint could not be written: cannot write {run.directory}/checkpoints/" in sentence
    assert words in sentence
    assert f"it resumes at step {max(manifests(run)):,}, from {run.directory}/checkpoints/" in sentence
    return sentence


def expect_resumed(runs: Runs, run: Run, *options: str) -> None:
    """Check that the same command resumes at the last checkpoint and finishes."""
    saved = max(manifests(run))
    again = runs.start(*options, directory=run.directory)
    assert again.running.wait(300) == 0, again.running.report()
    assert f"at global step {saved}" in again.log("parameter-server")
    assert again.summary["env_steps"] > saved
    assert (again.summary["lost_steps"], again.summary["error"]) == (0, None)
    assert not list(run.directory.parent.glob("run.*")), "no run was moved aside"


@pytest.mark.slow
@checks_of_writers
def test_run_that_ends_on_a_full_disk_fails_and_is_resumed(runs: Runs, tmp_path: Path) -> None:
    options = ("--clients", "1", "--set", "run.target_return=null", "--set", "run.checkpoint_interval=1")
    with small_disk(tmp_path / "disk", "250k") as disk:  # space for two checkpoints
        run = runs.start(*options, "--max-time", "8", directory=disk.path / "run")
        sentence = expect_lost(run, 1, "No space left on device")
        late = [line for line in run.running.lines if line.startswith("the checkpoint is late (the last: step ")]
        assert len(late) == 1
        assert late[0].endswith("No space left on device")
        (outcome,) = [line for line in run.running.lines if line.startswith("failed: ")]
        if (run.directory / "summary.json").exists():  # it may have fitted on the disk
            assert run.summary["status"] == "failed"
            assert sentence.endswith(run.summary["error"])
            assert f"{run.summary['env_steps']:,} steps" in outcome
        disk.grow("8m")
        expect_resumed(runs, run, *options, "--max-time", "2")


@pytest.mark.slow
@checks_of_writers
@pytest.mark.parametrize("how", ["full", "read-only", "limit"])
def test_run_whose_disk_fails_loses_steps_and_is_resumed(runs: Runs, tmp_path: Path, how: str) -> None:
    """The run continues, reports its lost steps when interrupted, and is resumed after the disk is repaired."""
    options = ("--clients", "1", "--set", "run.target_return=null", "--set", "run.checkpoint_interval=1")
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(
            breaking_disk(tmp_path / "disk") if how == "read-only" else small_disk(tmp_path / "disk", "16m")
        )
        run = runs.start(*options, directory=disk.path / "run")
        run.wait_for(lambda status: status.checkpoint_global_step, "there is a checkpoint")
        if isinstance(disk, BreakingDisk):
            disk.break_down()
            words = "Read-only file system"
        elif how == "full":
            fill_until_late(run, disk)
            words = "No space left on device"
        else:
            (server,) = run.of("parameter-server")
            server.rlimit(psutil.RLIMIT_FSIZE, (10_000, 10_000))
            words = "File too large"
        late = run.wait_for(lambda status: words in status.checkpoint_error, "the checkpoint is late")
        run.wait_for_steps(late.global_step + 500)
        run.running.send_signal(signal.SIGTERM)
        expect_lost(run, 1, words)
        if isinstance(disk, BreakingDisk):
            disk.repair()
        elif how == "full":
            disk.free()
        expect_resumed(runs, run, *options, "--max-time", "2")


@pytest.mark.slow
@checks_of_writers
def test_space_freed_during_the_last_retry_loses_no_steps(runs: Runs, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "16m") as disk:  # space for all checkpoints that are kept
        run = runs.start("--clients", "1", "--set", "run.checkpoint_interval=1", directory=disk.path / "run")
        run.wait_for(lambda status: status.global_step > 500, "it trains")
        fill_until_late(run, disk)
        run.running.send_signal(signal.SIGTERM)
        wait_until(lambda: "retrying the last checkpoint for up to a minute" in run.running.stderr, "a retry", PATIENCE)
        disk.free()
        assert run.running.wait(PATIENCE) == 130, run.running.report()
        assert run.summary["lost_steps"] == 0
        assert max(manifests(run)) == run.summary["env_steps"]


@pytest.mark.slow
def test_parameter_server_killed_at_the_end_loses_steps(runs: Runs, tmp_path: Path) -> None:
    run = runs.start("--clients", "1", "--set", "run.checkpoint_interval=1")
    status = run.wait_for(lambda status: status.checkpoint_global_step, "there is a checkpoint")
    run.wait_for_steps(status.global_step + 500)
    (server,) = run.of("parameter-server")
    server.suspend()
    run.running.send_signal(signal.SIGTERM)
    wait_until(lambda: not run.of("client") and not run.of("rlx-server"), "the others have ended", PATIENCE)
    server.kill()
    assert run.running.wait(60) == 1, run.running.report()
    assert run.summary["status"] == "failed"
    assert (
        "because the last checkpoint could not be written: the parameter server ended with SIGKILL"
        in (run.running.stderr.strip().splitlines()[-1])
    )
    assert run.summary["env_steps"] - run.summary["lost_steps"] == max(manifests(run))
    expect_resumed(runs, run, "--clients", "1", "--set", "run.target_return=null", "--max-time", "1")


@pytest.mark.slow
def test_run_fails_if_its_summary_cannot_be_written(runs: Runs) -> None:
    options = ("--clients", "1", "--set", "run.target_return=null", "--max-steps", "300", "--summary", "/dev/full")
    run = runs.start(*options)
    assert run.running.wait(150) == 1, run.running.report()
    sentence = "relaax run: the summary cannot be written to /dev/full: No space left on device\n"
    assert run.running.stderr == sentence
    assert run.summary["status"] == "max_steps"
    assert run.summary["env_steps"] == max(manifests(run))


@pytest.mark.slow
@checks_of_writers
@pytest.mark.parametrize("pages", [0, 1, 2, 3])
def test_run_that_starts_on_a_full_disk_names_the_cause(runs: Runs, tmp_path: Path, pages: int) -> None:
    """The disk becomes full at the configuration, at a log or at the lease."""
    with small_disk(tmp_path / "disk", f"{4 * pages or 4}k") as disk:
        if not pages:
            disk.fill()
        run = runs.start("--clients", "1", "--max-steps", "300", directory=disk.path / "run")
        code = run.running.wait(150)
        assert code in (1, 2), run.running.report()
        assert "No space left on device" in run.running.stderr
        assert "Traceback" not in run.running.stderr
        assert not (disk.path / "run" / "summary.json").exists() or run.summary["status"] == "failed"
        disk.grow("8m")
        again = runs.start(
            "--clients", "1", "--set", "run.target_return=null", "--max-steps", "300", directory=run.directory
        )
        assert again.running.wait(150) == 0, again.running.report()


@pytest.mark.slow
@checks_of_writers
def test_failed_write_of_one_shard_loses_the_steps_of_all(runs: Runs) -> None:
    options = ("--clients", "1", "--set", "relaax-parameter-server.shards=2", "--set", "run.checkpoint_interval=1")
    run = runs.start(*options)
    run.wait_for(lambda status: status.checkpoint_global_step, "there is a checkpoint")
    shard = max(run.of("parameter-server"), key=lambda process: process.create_time())
    shard.rlimit(psutil.RLIMIT_FSIZE, (10_000, 10_000))
    late = run.wait_for(lambda status: status.checkpoint_error, "the checkpoint is late")
    assert "shard 1 of 2: cannot write" in late.checkpoint_error
    run.wait_for_steps(late.global_step + 500)
    run.running.send_signal(signal.SIGTERM)
    assert run.running.wait(300) == 1, run.running.report()
    run.expect_nothing_left()
    (sentence,) = [line for line in run.running.stderr.splitlines() if "steps are lost" in line]
    assert "File too large" in sentence
    assert run.summary["env_steps"] - run.summary["lost_steps"] == max(manifests(run))
    expect_resumed(runs, run, *options, "--set", "run.target_return=null", "--max-time", "2")
