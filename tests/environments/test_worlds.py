"""ViZDoom and MiniWorld: real engines, alone and against a scripted server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from environments.ViZDoom.main import find, make, parser
from relaax import rlx
from support.machine import missing_requirements
from support.processes import wait_until
from support.programs import PATIENCE, ROOT, program, signalled
from support.rlx_peer import PeerConnection, RlxPeer, serve
from support.run import Runs

pytestmark = pytest.mark.checks(
    "environments/MiniWorld", "environments/ViZDoom", "relaax/client/program", "algorithms/da3c"
)

LACK = missing_requirements("MiniWorld")
with_graphics = pytest.mark.skipif(LACK is not None, reason=str(LACK))
MAZE = "MiniWorld-MazeS3Fast-v0"
checks = pytest.mark.checks("environments/MiniWorld", "relaax/client/program", "tests/support/several_miniworlds.py")


def serve_randomly(conn: PeerConnection) -> None:
    rng = np.random.default_rng(3)
    conn.policy = lambda message, conn: [rng.integers(conn.hello.action_space.n, size=conn.hello.environments)]
    serve(conn)


@pytest.mark.parametrize(
    ("family", "name", "identifier", "shape", "actions", "skip"),
    [
        ("ViZDoom", "my_way_home", "VizdoomMyWayHome-v1", (42, 42), 6, 4),
        pytest.param(
            *("MiniWorld", "MazeS3Fast", MAZE, (42, 42, 3), 3, 1), marks=[with_graphics, pytest.mark.slow, checks]
        ),
    ],
)
def test_two_environments_run_against_server(
    family: str, name: str, identifier: str, shape: tuple[int, ...], actions: int, skip: int
) -> None:
    with RlxPeer(serve_randomly) as peer:
        done = program(family, peer.address, name, "2", "--side", "42", "--steps", "40", "--seed", "1")
        (conn,) = peer.connections
    assert done.returncode == 0, done.stderr
    assert all("relaax.client:" in line for line in done.stderr.splitlines()), done.stderr
    assert done.stdout.startswith("40 steps")
    assert (conn.hello.environment, conn.hello.environments, conn.hello.frame_skip) == (identifier, 2, skip)
    assert conn.hello.observation_space == rlx.Box(0, 255, shape, np.uint8)
    assert conn.hello.action_space == rlx.Discrete(actions)
    frames = np.stack([step.observation[0] for step in conn.of(rlx.Step)])
    assert frames.std() > 10
    assert (frames[0] != frames[-1]).any()
    assert (frames[:, 0] != frames[:, 1]).any()


def test_timed_out_game_is_truncated_with_last_screen() -> None:
    env = make(find("my_way_home"), parser().parse_args(["random", "any", "1", "--frame-skip", "300"]))
    env.reset(seed=1)
    for _ in range(8):  # the time limit is 2100 frames, 10 of them before the first step
        _, rewards, terminated, truncated, infos = env.step(np.zeros(1, np.int64))
        if truncated[0]:
            break
    env.close()
    assert (terminated.tolist(), truncated.tolist()) == ([False], [True])
    assert infos["final_obs"][0].std() > 10
    assert rewards[0] < 0


@with_graphics
@pytest.mark.slow
@checks
def test_worlds_in_one_process_equal_separate_worlds() -> None:
    command = [sys.executable, "-m", "support.several_miniworlds"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("family", "name", "sentence"),
    [
        ("ViZDoom", "my_way_hom", "ViZDoom has no environment 'my_way_hom'; the nearest is 'VizdoomMyWayHome'"),
        pytest.param(
            "MiniWorld", "MazeS4", "MiniWorld has no environment 'MazeS4'; the nearest is", marks=with_graphics
        ),
    ],
)
def test_unknown_world_error_suggests_nearest_world(family: str, name: str, sentence: str) -> None:
    done = program(family, "127.0.0.1:1", name)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{family}/main: {sentence}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGKILL, -9)],
)
def test_signal_ends_all_engines(number: signal.Signals, code: int) -> None:
    ended, engines = signalled("ViZDoom", "basic", number)
    assert len(engines) >= 2
    assert ended == code
    wait_until(lambda: not any(engine.is_running() for engine in engines), "every engine has ended", PATIENCE)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("config", "name", "target", "short_target"),
    [
        pytest.param("da3c_miniworld_maze", "OneRoomS6Fast", 0.85, None, marks=with_graphics),
        ("da3c_vizdoom_my_way_home", "VizdoomBasic", 20.0, -100.0),
    ],
)
def test_agent_learns_small_world(
    runs: Runs, config: str, name: str, target: float, short_target: float | None, short: bool
) -> None:
    """Uses the settings of the study `mazes` on smaller tasks. A random agent returns 0.57 and -176."""
    if short and short_target is None:
        pytest.skip("only in the long form: more than two minutes")
    chosen = "--target-return", str(short_target if short else target), "--set", f"relaax-run.name={name}"
    run = runs.start(*chosen, "--seed", "5", "--no-progress", config=config)
    assert run.running.wait(800) == 0, run.running.report()
    assert run.summary["status"] == "target_reached"
