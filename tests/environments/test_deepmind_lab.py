"""environments/DeepMind_Lab against a fake Lab with the documented API, because the engine needs a Bazel build."""

from __future__ import annotations

import importlib.util
import os

import gymnasium
import numpy as np
import pytest

from environments.DeepMind_Lab.level import ACTIONS, SHRUNK, Level
from environments.DeepMind_Lab.main import parser
from relaax import rlx
from relaax.client.program.families import gray
from support.documented_lab.deepmind_lab import LEVEL, SPEC, Lab
from support.programs import ROOT, program
from support.rlx_peer import PeerConnection, RlxPeer, serve

FAMILY = "DeepMind_Lab"
DOCUMENTED = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support" / "documented_lab")])
FORWARD, FORWARD_OF_ALL = 4, 6


@pytest.fixture
def lab() -> Lab:
    return Lab(LEVEL, ["RGB_INTERLEAVED"], config={"width": "84", "height": "84"})


def test_last_observation_is_newest_frame_before_the_end(lab):
    level = Level(lambda: lab)
    seen, _ = level.reset(seed=1)
    assert (seen.shape, seen.dtype, seen[0, 0]) == ((84, 84), np.uint8, 0)
    outcomes = []
    for _ in range(3):
        seen, reward, terminated, truncated, _ = level.step(FORWARD)
        outcomes.append((int(seen[5, 7]), reward, terminated, truncated))
    # A step takes four frames. The episode ends in the third step, after ten frames, and has no frame then.
    assert outcomes == [(4, 4.0, False, False), (8, 4.0, False, False), (8, 2.0, True, False)]
    assert level.reset()[0][0, 0] == 0
    level.close()
    assert lab.is_closed
    level.close()


@pytest.mark.parametrize(("shrink", "actions"), [(True, SHRUNK), (False, ACTIONS)])
def test_each_action_sets_one_control_within_bounds(lab, shrink, actions):
    level = Level(lambda: lab, frame_skip=1, shrink=shrink)
    count = {True: 6, False: 11}[shrink]
    assert level.action_space.n == len(actions) == count
    level.reset()
    for action in range(count):
        if not lab.is_running():
            level.reset()
        level.step(np.int64(action))
    moved = [{SPEC[i]["name"]: value for i, value in enumerate(action) if value} for action in lab.actions]
    assert moved == [{control: value} for _, control, value in actions]
    assert len({(control, value > 0) for _, control, value in actions}) == count


def test_shrunk_actions_look_strafe_and_move():
    assert [name for name, _, _ in SHRUNK] == [
        *("look left", "look right", "strafe left", "strafe right", "move forward", "move back"),
    ]


@pytest.mark.parametrize(
    ("words", "count", "name"),
    [
        ([], 1, "nav_maze_static_01"),
        (["4"], 4, "nav_maze_static_01"),
        (["4", "seekavoid_arena_01"], 4, "seekavoid_arena_01"),
        (["seekavoid_arena_01"], 1, "seekavoid_arena_01"),
        (["seekavoid_arena_01", "4", "--seed", "3"], 4, "seekavoid_arena_01"),
    ],
)
def test_count_and_level_are_optional(words, count, name):
    arguments = parser().parse_args(["localhost:7001", *words])
    assert (arguments.environments, arguments.name, arguments.shrink) == (count, name, True)


@pytest.mark.parametrize("words", [["display"], ["display", "maze"], ["maze", "display"]])
def test_display_means_one_watched_level(words):
    arguments = parser().parse_args(["localhost", *words])
    assert (arguments.environments, arguments.display) == (1, True)
    assert arguments.name == ("maze" if "maze" in words else "nav_maze_static_01")


@pytest.mark.parametrize(("words", "sentence"), [(["4", "5"], "4 5"), (["a", "b"], "a b"), (["0"], "less than 1")])
def test_invalid_count_or_two_levels_are_refused(words, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["localhost:7001", *words])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_episode_seeds_differ_and_repeat_in_second_run(lab):
    for _ in range(2):
        level = Level(lambda: lab)
        level.reset(seed=7)
        level.reset()
    first, second, again, and_again = lab.seeds
    assert (first, second) == (again, and_again)
    assert first != second


def test_reading_spaces_starts_no_engine():
    level = Level(lambda: pytest.fail("started"))
    assert level.observation_space == gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)
    level.close()


def test_gray_uses_luma_weights():
    frame = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0, 0, 0]]], np.uint8)
    assert gray(frame).tolist() == [[76, 150, 29, 255, 0]]  # 0.299, 0.587 and 0.114 of 255
    assert gray(frame).dtype == np.uint8


def forward(conn: PeerConnection) -> None:
    forwards = {6: FORWARD, 11: FORWARD_OF_ALL}
    conn.policy = lambda message, conn: [np.full(conn.hello.environments, forwards[conn.hello.action_space.n])]
    serve(conn)


@pytest.mark.parametrize(
    ("count", "options", "actions"),
    [(1, [], 6), (2, ["--no-shrink"], 11), (2, ["--vectorization", "sync"], 6)],
)
def test_levels_run_against_server(count, options, actions):
    with RlxPeer(forward) as peer:
        steps = str(6 * count)
        done = program(FAMILY, peer.address, str(count), LEVEL, "--steps", steps, *options, PYTHONPATH=DOCUMENTED)
        hello, init, *rest = peer.connections[0].received
    assert done.returncode == 0, done.stderr
    assert all("relaax.client:" in line for line in done.stderr.splitlines()), done.stderr
    assert (hello.environment, hello.environments, hello.frame_skip) == (LEVEL, count, 4)
    assert hello.observation_space == rlx.Box(0, 255, (84, 84), np.uint8)
    assert hello.action_space == rlx.Discrete(actions)
    assert init.observation[0].shape == (count, 84, 84)
    received = [message for message in rest if isinstance(message, rlx.Step)]
    assert [step.reward.tolist() for step in received] == [[reward] * count for reward in (4.0, 4.0, 2.0) * 2]
    ended = [step for step in received if step.terminated is not None]
    assert [step.terminated.tolist() for step in ended] == [[True] * count] * 2
    assert "mean return 10.0" in done.stdout


def test_unknown_level_is_refused_with_one_line():
    with RlxPeer(forward) as peer:
        done = program(FAMILY, peer.address, "corridr", PYTHONPATH=DOCUMENTED)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("cannot open the level 'corridr': Level not found: corridr")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("deepmind_lab") is not None, reason="DeepMind Lab is installed")
def test_missing_lab_error_names_build_command():
    done = program(FAMILY, "127.0.0.1:1", "2")
    assert done.returncode == 2
    assert done.stderr.startswith("DeepMind_Lab/main: this Python has no deepmind_lab")
    assert "bazel build" in done.stderr
    assert len(done.stderr.splitlines()) == 1
