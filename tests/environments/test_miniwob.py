"""Tasks of MiniWoB++ in a real Chromium; skipped without one."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from environments.MiniWoB import main as miniwob
from relaax import rlx
from support.machine import missing_requirements
from support.processes import wait_until
from support.programs import PATIENCE, program, refusal, signalled
from support.rlx_peer import PeerConnection, RlxPeer, serve
from support.run import Runs, is_alive

FAMILY = "MiniWoB"
LACK = missing_requirements(FAMILY)
with_chromium = pytest.mark.skipif(LACK is not None, reason=str(LACK))


def serve_each_place(conn: PeerConnection) -> None:
    """Click at one place after another."""
    places = iter(range(10_000))
    conn.policy = lambda message, conn: [np.full(conn.hello.environments, next(places) % conn.hello.action_space.n)]
    serve(conn)


@pytest.mark.slow
@pytest.mark.checks("environments/MiniWoB", "relaax/client/program/process.py")
@with_chromium
def test_two_browsers_run_against_server() -> None:
    with RlxPeer(serve_each_place) as peer:
        options = ["--clicks", "64", "--steps", "160", "--seed", "1"]
        # No proxy listens on this port: the driver of the browser must be reached directly.
        done = program(FAMILY, peer.address, "click-test", "2", *options, http_proxy="http://127.0.0.1:9")
        (conn,) = peer.connections
    assert done.returncode == 0, done.stderr
    assert all("relaax.client:" in line for line in done.stderr.splitlines()), done.stderr
    assert (conn.hello.environment, conn.hello.environments) == ("miniwob/click-test-v1", 2)
    assert conn.hello.observation_space == rlx.Box(0, 255, (105, 80, 3), np.uint8)
    assert conn.hello.action_space == rlx.Discrete(64)
    first = conn.of(rlx.Init)[0].observation[0]
    assert (first[0] != first[1]).any()  # the button is at another place
    assert first[0][2, 78].tolist() == [255, 255, 0]  # the sentence has a yellow background
    steps = conn.of(rlx.Step)
    ends = [step for step in steps if step.terminated is not None]
    # One place after another is clicked, so one click hits the button. Success ends an episode, and the next one looks
    # different.
    assert ends
    assert all((step.reward[step.terminated] == 1).all() for step in ends)
    assert all(not step.reward.any() for step in steps if step.terminated is None)
    last = next(k for k, step in enumerate(steps) if step is ends[0])
    assert (steps[last].observation[0] != steps[last - 1].observation[0]).any()


@pytest.mark.slow
@pytest.mark.checks("environments/MiniWoB", "relaax/client/program/process.py")
@with_chromium
def test_last_click_without_success_is_a_failure() -> None:
    def corner(conn: PeerConnection) -> None:
        conn.policy = lambda message, conn: [np.full(conn.hello.environments, 63)]
        serve(conn)

    with RlxPeer(corner) as peer:
        done = program(FAMILY, peer.address, "click_test", "1", "--clicks", "2", "--steps", "12", "--seed", "1")
        steps = peer.connections[0].of(rlx.Step)
    assert done.returncode == 0, done.stderr
    rewards = [step.reward[0] for step in steps if step.terminated is not None]
    assert -1 in rewards
    assert set(rewards) <= {-1, 1}


@pytest.mark.slow
@pytest.mark.checks("environments/MiniWoB", "relaax/client/program/process.py")
@with_chromium
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_signal_ends_all_browsers(number: signal.Signals, code: int) -> None:
    ended, descendants = signalled(FAMILY, "click-test", number)
    assert sum(name.startswith("chromedriver") for name in descendants.values()) == 2
    assert ended == code
    wait_until(lambda: not any(map(is_alive, descendants)), "every browser and driver has ended", PATIENCE)


def test_missing_browser_error_names_packages() -> None:
    done = program(FAMILY, "127.0.0.1:1", "click-test", PATH="/no/such", MINIWOB_CHROMEDRIVER="/no/such/driver")
    assert done.returncode == 2
    assert done.stderr.startswith("MiniWoB/main: there is no chromium on this machine: install Chromium")
    assert len(done.stderr.splitlines()) == 1


def test_unknown_task_error_suggests_nearest_task() -> None:
    sentence = "MiniWoB has no environment 'clik-test-2'; the nearest is 'miniwob/click-test-2'"
    assert refusal(miniwob, "127.0.0.1:1", "clik-test-2") == sentence


@pytest.mark.slow
@pytest.mark.checks("environments/MiniWoB", "config/da3c_miniwob_click_test.yaml")
@pytest.mark.timeout(900)
@with_chromium
def test_agent_learns_click_test(runs: Runs, short: bool) -> None:
    """Random clicks hit the button in a tenth of the episodes: a mean return of -0.7."""
    target = -0.3 if short else 0.6
    run = runs.start("--target-return", str(target), "--seed", "5", "--no-progress", config="da3c_miniwob_click_test")
    assert run.running.wait(800) == 0, run.running.report()
    assert run.summary["status"] == "target_reached"
    run.expect_nothing_left()
