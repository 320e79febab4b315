"""A run continues after any of its processes is killed at any time."""

from __future__ import annotations

import json
import signal

import pytest

from support.processes import wait_until
from support.run import SMALL, Run, Runs, is_alive

pytestmark = pytest.mark.checks("relaax/cli/run", "relaax/supervision", "relaax/server")

ENDLESS = ("--set", "run.target_return=null", "--set", "algorithm.max_global_step=1e9")
OPTIONS = (*SMALL, *ENDLESS, "--set", "run.checkpoint_interval=1")
MORE = 300  # steps that show that training continues


def kill_one(run: Run, part: str) -> None:
    victim = run.of(part)[0]
    victim.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_alive(victim), f"the {part} is dead")


def expect_training(run: Run, since: int) -> None:
    """Wait until training continues from step `since` and every process runs again."""
    run.wait_for_steps(since + MORE)
    run.wait_for(lambda status: status.workers >= 2, "two workers are registered; killed ones may still count")
    for part, count in (("client", 2), ("worker", 2), ("rlx-server", 1), ("parameter-server", 1)):
        wait_until(lambda part=part, count=count: len(run.of(part)) == count, f"there are {count} of {part}", 60)  # type: ignore[misc]


def expect_orderly_end(run: Run) -> None:
    run.running.send_signal(signal.SIGINT)
    assert run.running.wait(60) == 130, run.running.report()
    run.expect_nothing_left()
    manifests = [json.loads(path.read_text()) for path in run.directory.rglob("manifest.json")]
    assert max(manifest["global_step"] for manifest in manifests) == run.summary["env_steps"]


def kill_and_expect_training(run: Run, part: str) -> None:
    before = run.status
    kill_one(run, part)
    after = run.wait_for(lambda status: True, "the parameter server answers")
    if part == "parameter-server":
        assert after.incarnation != before.incarnation
        assert after.global_step >= before.checkpoint_global_step > 0, "training resumes from the last checkpoint"
        expect_training(run, after.global_step)
    else:
        assert after.incarnation == before.incarnation
        assert after.global_step >= before.global_step, "only steps that the killed process had not sent are lost"
        expect_training(run, before.global_step)


def started_with_checkpoint(runs: Runs) -> Run:
    run = runs.start(*OPTIONS)
    run.wait_for(lambda status: status.checkpoint_global_step > 0, "there is a checkpoint")
    return run


@pytest.mark.slow
def test_run_continues_after_each_process_is_killed(runs: Runs) -> None:
    run = started_with_checkpoint(runs)
    for part in ("worker", "client", "rlx-server", "parameter-server"):
        kill_and_expect_training(run, part)
    assert run.running.returncode is None
    log = run.running.stderr
    for words in ("client-", "RLX server", "parameter server"):
        assert words in log, "each restart is logged"
    expect_orderly_end(run)


@pytest.mark.slow
@pytest.mark.usefixtures("skipped_by_short")
@pytest.mark.parametrize("part", ["worker", "client", "rlx-server", "parameter-server"])
def test_run_continues_after_a_process_is_killed_twice(runs: Runs, part: str) -> None:
    run = started_with_checkpoint(runs)
    for _ in range(2):
        kill_and_expect_training(run, part)
    expect_orderly_end(run)


@pytest.mark.slow
@pytest.mark.usefixtures("skipped_by_short")
def test_run_continues_after_both_servers_are_killed(runs: Runs) -> None:
    run = started_with_checkpoint(runs)
    kill_one(run, "parameter-server")
    kill_one(run, "rlx-server")
    since = run.wait_for(lambda status: True, "the parameter server answers").global_step
    expect_training(run, since)
    expect_orderly_end(run)


@pytest.mark.slow
def test_parameter_server_killed_while_stopping_is_restored(runs: Runs) -> None:
    run = started_with_checkpoint(runs)
    (victim,) = run.of("parameter-server")  # found before the signal, because it may end soon after it
    run.running.send_signal(signal.SIGINT)
    victim.kill()
    assert run.running.wait(60) == 1, run.running.report()  # steps may be lost
    run.expect_nothing_left()
    assert run.summary["status"] == "failed"
    assert "ended with SIGKILL" in run.summary["error"]
    restarted = runs.start(*OPTIONS)
    assert restarted.wait_for(lambda status: True, "the parameter server answers").global_step > 0


@pytest.mark.slow
@pytest.mark.parametrize("part", ["worker", "rlx-server", "parameter-server"])
def test_run_continues_after_a_process_was_suspended(runs: Runs, part: str, short: bool) -> None:
    if short and part != "parameter-server":
        pytest.skip("--short suspends only the parameter server, for which all other processes wait")
    run = started_with_checkpoint(runs)
    victim = run.of(part)[0]
    victim.suspend()
    if part == "worker":  # the other workers continue
        run.wait_for_steps(run.status.global_step + MORE)
    else:
        with pytest.raises(AssertionError, match="suspended"):
            wait_until(lambda: not is_alive(victim), "suspended", timeout=3)
    victim.resume()
    expect_training(run, run.wait_for(lambda status: True, "the parameter server answers").global_step)
    expect_orderly_end(run)
