"""Any process of a run may be killed at any time: the run goes on."""

from __future__ import annotations

import json
import signal

import pytest

from support.processes import wait_until
from support.run import SMALL, Run, Runs, is_alive

pytestmark = pytest.mark.checks("relaax/cli/run", "relaax/supervision", "relaax/server")

ENDLESS = ("--set", "run.target_return=null", "--set", "algorithm.max_global_step=1e9")
OPTIONS = (*SMALL, *ENDLESS, "--set", "run.checkpoint_interval=1")
MORE = 300  # steps that show that training goes on


def kill_one(run: Run, part: str) -> None:
    victim = run.of(part)[0]
    victim.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_alive(victim), f"the {part} is dead")


def expect_training(run: Run, since: int) -> None:
    """It goes on from `since`, with every part back in its place."""
    run.wait_for_steps(since + MORE)
    run.wait_for(lambda status: status.workers >= 2, "two workers are registered, and the dead for a while")
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
        assert after.global_step >= before.checkpoint_global_step > 0, "it goes on from the last checkpoint"
        expect_training(run, after.global_step)
    else:
        assert after.incarnation == before.incarnation
        assert after.global_step >= before.global_step, "nothing was lost but what the dead had not sent"
        expect_training(run, before.global_step)


def started(runs: Runs) -> Run:
    run = runs.start(*OPTIONS)
    run.wait_for(lambda status: status.checkpoint_global_step > 0, "there is a checkpoint")
    return run


@pytest.mark.slow
def test_each_part_of_a_run_is_killed_in_turn_and_the_run_goes_on(runs: Runs) -> None:
    run = started(runs)
    for part in ("worker", "client", "rlx-server", "parameter-server"):
        kill_and_expect_training(run, part)
    assert run.running.returncode is None
    said = run.running.stderr
    for words in ("client-", "RLX server", "parameter server"):
        assert words in said, "each restart is told"
    expect_orderly_end(run)


@pytest.mark.slow
@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("part", ["worker", "client", "rlx-server", "parameter-server"])
def test_a_part_is_killed_twice(runs: Runs, part: str) -> None:
    run = started(runs)
    for _ in range(2):
        kill_and_expect_training(run, part)
    expect_orderly_end(run)


@pytest.mark.slow
@pytest.mark.usefixtures("unhurried")
def test_both_servers_are_killed_at_once(runs: Runs) -> None:
    run = started(runs)
    kill_one(run, "parameter-server")
    kill_one(run, "rlx-server")
    since = run.wait_for(lambda status: True, "the parameter server answers").global_step
    expect_training(run, since)
    expect_orderly_end(run)


@pytest.mark.slow
def test_a_parameter_server_that_is_killed_while_it_ends_leaves_a_checkpoint(runs: Runs) -> None:
    run = started(runs)
    (victim,) = run.of("parameter-server")  # found before: afterwards it may be gone
    run.running.send_signal(signal.SIGINT)
    victim.kill()
    assert run.running.wait(60) == 1, run.running.report()  # steps may be lost
    run.expect_nothing_left()
    assert run.summary["status"] == "failed"
    assert "ended with SIGKILL" in run.summary["error"]
    again = runs.start(*OPTIONS)
    assert again.wait_for(lambda status: True, "it is there").global_step > 0


@pytest.mark.slow
@pytest.mark.parametrize("part", ["worker", "rlx-server", "parameter-server"])
def test_a_part_that_stands_still_for_a_while(runs: Runs, part: str, short: bool) -> None:
    if short and part != "parameter-server":
        pytest.skip("--short stops the parameter server only, for which all others wait")
    run = started(runs)
    victim = run.of(part)[0]
    victim.suspend()
    if part == "worker":  # the others train on
        run.wait_for_steps(run.status.global_step + MORE)
    else:
        with pytest.raises(AssertionError, match="never so"):
            wait_until(lambda: not is_alive(victim), "never so", timeout=3)
    victim.resume()
    expect_training(run, run.wait_for(lambda status: True, "the parameter server answers").global_step)
    expect_orderly_end(run)
