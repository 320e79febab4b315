"""Tests of environments that run without a server, and of their measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from environments.OpenAI_Gym import main as gym
from relaax import rlx
from relaax.client import run
from relaax.client.program.agents import RandomAgent
from support.counting import Counting, action_for, counting_policy
from support.programs import program, refusal
from support.rlx_peer import PeerConnection, RlxPeer, serve

ACTION_SPACES = [
    spaces.Discrete(3, start=5),
    spaces.Box(-2, 3, (2, 2)),
    spaces.Box(-np.inf, np.inf, (2,), np.float64),
    spaces.Box(np.array([5.0, -np.inf]), np.array([np.inf, -7.0]), dtype=np.float64),
    spaces.MultiDiscrete([2, 5]),
    spaces.MultiBinary(3),
    spaces.Tuple([spaces.Discrete(2), spaces.Dict({"a": spaces.Box(0, 1, (1,))})]),
]


STATES = spaces.Box(-1, 1, (2,), np.float32)


def serve_counting(conn: PeerConnection) -> None:
    conn.policy = counting_policy
    serve(conn)


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("space", ACTION_SPACES, ids=str)
def test_random_actions_are_in_the_space(space: Any) -> None:
    agent = RandomAgent(STATES, space, seed=1)
    for _ in range(50):
        assert agent.init(None) in space


@pytest.mark.parametrize("count", [None, 6])
def test_random_choices_are_uniform_over_the_valid_actions(count: int | None) -> None:
    actions = spaces.Dict({"a": spaces.Discrete(3, start=5), "b": spaces.Box(-1, 1), "c": spaces.MultiDiscrete([2, 3])})
    agent = RandomAgent(spaces.Dict({"at": STATES, "action_mask": spaces.MultiBinary(8)}), actions, count, seed=4)
    assert agent.masked
    mask, rows = np.array([1, 0, 1, 0, 1, 1, 1, 0], np.int8), count or 1
    state = {"at": np.zeros((rows, 2), np.float32), "action_mask": np.tile(mask, (rows, 1))}
    taken = []
    for _ in range(1200 // rows):
        drawn = agent.step(None, state if count else {key: part[0] for key, part in state.items()})
        taken.append(np.column_stack([np.reshape(drawn["a"], rows), np.reshape(drawn["c"], (rows, 2))]))
    first, *others = np.concatenate(taken).T
    shares = {int(action): float(np.mean(first == action)) for action in np.unique(first)}
    assert shares == {5: pytest.approx(0.5, abs=0.06), 7: pytest.approx(0.5, abs=0.06)}
    assert [np.unique(column).tolist() for column in others] == [[1], [0, 1]]


def test_random_agent_acts_where_a_mask_allows_nothing() -> None:
    agent = RandomAgent(
        spaces.Dict({"at": STATES, "action_mask": spaces.MultiBinary(3)}), spaces.Discrete(3), 2, seed=0
    )
    state = {"at": np.zeros((2, 2), np.float32), "action_mask": np.array([[0, 0, 0], [0, 1, 0]], np.int8)}
    drawn = np.array([agent.step(None, state) for _ in range(60)])
    assert set(drawn[:, 0]) == {0, 1, 2}
    assert set(drawn[:, 1]) == {1}


def test_every_action_is_drawn_and_a_seed_repeats_the_draws() -> None:
    drawn = [RandomAgent(STATES, rlx.Discrete(4), 8, seed=2).step(None, None) for _ in range(2)]
    np.testing.assert_array_equal(*drawn)
    agent = RandomAgent(STATES, rlx.Discrete(4), 8, seed=3)
    assert {int(action) for _ in range(20) for action in agent.step(None, None)} == {0, 1, 2, 3}


class Guessing(gymnasium.Env[int, int]):
    """An environment that draws a number in each step. The reward is 1 if the action equals the number."""

    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return 0, float(action == self.np_random.integers(0, 2)), self._steps == 50, False, {}


def test_random_actions_differ_from_an_environments_draws() -> None:
    returns = [run(Guessing(), "random", episodes=1, seed=seed).mean_return for seed in range(10)]
    assert all(value is not None and 8 < value < 42 for value in returns), returns


def test_single_environment_runs_without_a_server() -> None:
    summary = run(gymnasium.make("CartPole-v1"), "random", episodes=20, seed=1)
    assert summary.episodes == 20
    assert summary.mean_return is not None
    assert 10 < summary.mean_return < 50


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vector_runs_without_a_server(mode: AutoresetMode) -> None:
    env = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, autoreset_mode=mode)
    assert run(env, "random", steps=300, seed=1).steps >= 300


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_measurements_of_a_vector_have_steps_and_times(mode: AutoresetMode, tmp_path: Path) -> None:
    env = SyncVectorEnv([lambda i=i: Counting(i) for i in range(3)], autoreset_mode=mode)
    with RlxPeer(serve_counting) as peer:
        summary = run(env, peer.address, steps=120, measure=tmp_path / "m")
    first, *_, last = lines_of(tmp_path / "m")
    assert first["start_seconds"] > 0
    assert first["steps"] == 0
    assert 0 <= last["steps"] <= summary.steps  # only steps sent to the agent are counted
    assert summary.steps - last["steps"] < 3
    assert last["time"] > first["time"]
    times = [value for line in lines_of(tmp_path / "m") for value in line["act_ms"]]
    assert len(times) >= 40
    assert min(times) > 0


def test_measurements_of_one_environment_have_its_steps(tmp_path: Path) -> None:
    with RlxPeer(serve_counting) as peer:
        summary = run(Counting(), peer.address, episodes=5, measure=tmp_path / "m")
    lines = lines_of(tmp_path / "m")
    assert lines[-1]["steps"] == summary.steps
    assert sum("start_seconds" in line for line in lines) == 1


class StepsDone(Exception):
    """The environment has taken all its steps."""


class LimitedSteps(Counting):
    """An environment that accepts any action of its space. It raises `StepsDone` after `left` steps."""

    left = 40

    def step(self, action: Any) -> Any:
        assert action in self.action_space
        if self.left == 0:
            raise StepsDone
        self.left -= 1
        return super().step(int(action_for(self._observation())))


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_measurements_without_a_server_have_only_time_and_steps(mode: AutoresetMode | None, tmp_path: Path) -> None:
    created: list[LimitedSteps] = []

    def make() -> LimitedSteps:
        created.append(LimitedSteps())
        return created[-1]

    env = make() if mode is None else SyncVectorEnv([make] * 3, autoreset_mode=mode)
    with pytest.raises(StepsDone):
        run(env, "random", seed=1, measure=tmp_path / "m")
    first, *_, last = lines_of(tmp_path / "m")
    assert first.keys() == last.keys() == {"time", "steps"}
    assert first["steps"] == 0
    used = created[-1:] if mode is None else created[-3:]
    taken = sum(LimitedSteps.left - env.left for env in used)
    assert taken - 2 <= last["steps"] <= taken, "only the steps of the last call may be missing"


def test_program_measures_without_a_server(tmp_path: Path) -> None:
    done = program("OpenAI_Gym", "random", "CartPole-v1", "2", "--steps", "600", "--measure", str(tmp_path / "m"))
    assert done.returncode == 0
    assert "mean return" in done.stdout
    assert lines_of(tmp_path / "m")[-1]["steps"] >= 598
    assert "cannot write --measure /proc/none" in refusal(gym, "random", "CartPole-v1", "--measure", "/proc/none")
