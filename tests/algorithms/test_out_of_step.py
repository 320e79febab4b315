"""Agents out of step learn the same as agents in step whose environments make the same decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from algorithms._value_based.agent import TARGETS
from relaax.algorithm_base import AgentBase, Box, Dict, Discrete, Space, load_algorithm
from relaax.algorithm_base.network import IMAGE as MEAN_IMAGE
from relaax.algorithm_base.normalization import MEAN_IMAGE_FRAMES
from relaax.algorithm_base.ragged import RaggedRollout
from relaax.algorithm_base.rollout import Rollout
from relaax.algorithm_base.testing import FakeParameters, make_agent
from relaax.algorithm_base.testing.harness import local_replay
from relaax.nn.specification import NetworkSpec
from relaax.parameters.moments import Moments
from relaax.replay.local import LocalReplay
from support.lives import Lives, play
from support.table_copies import state_of

VECTOR = Box(-9, 9, shape=(2,))
IMAGE = Box(0, 255, shape=(7, 6), dtype="uint8")
MASKED = Dict({"action_mask": Box(1, 1, shape=(3,), dtype="int8"), "numbers": VECTOR})
SMALL: dict[str, Any] = {"dense": [5], "lstm_size": 3}
CONVOLUTION: dict[str, Any] = {"dense": [5], "convolutions": [{"filters": 2, "kernel": 3, "stride": 2}]}
GREEDY: dict[str, Any] = {"initial_epsilon": 0, "final_epsilons": [0], "final_epsilon_probabilities": [1]}
REPLAY: dict[str, Any] = {"replay_capacity": 2_000, "learning_starts": 2_000, "held_out_states": 0}
ON_POLICY: list[tuple[str, Space, dict[str, Any]]] = [
    ("da3c", VECTOR, {"episode_len": 3}),
    ("da3c", VECTOR, {"episode_len": 3, "lstm": True, "overlap": False, "gae_lambda": 0.8}),
    ("da3c", MASKED, {"episode_len": 3, "lstm": True, "normalize_observations": True}),
    ("da3c", IMAGE, {"episode_len": 3, "network": CONVOLUTION, "subtract_mean_image": True}),
    ("da3c", VECTOR, {"whole_episodes": True, "lstm": True, "longest_episode": 5}),
    ("da3c", VECTOR, {"whole_episodes": True, "overlap": False}),
    ("ppo", VECTOR, {"episode_len": 3, "minibatches": 1, "lstm": True}),
    ("ppo", MASKED, {"episode_len": 3, "minibatches": 2, "overlap": True, "normalize_observations": True}),
    ("n_step_q", VECTOR, GREEDY | {"update_interval": 3, "lstm": True, "double": True}),
    ("n_step_q", IMAGE, GREEDY | {"update_interval": 3, "network": CONVOLUTION}),
    ("async_q", MASKED, GREEDY | {"update_interval": 2, "double": True, "normalize_observations": True}),
    ("async_sarsa", VECTOR, GREEDY | {"update_interval": 2}),
]


def new_agent(
    name: str,
    space: Space,
    keys: dict[str, Any],
    environments: int,
    out_of_step: bool,
    learning_rate: float = 0.1,
    replay: LocalReplay | None = None,
) -> tuple[AgentBase, FakeParameters]:
    algorithm = load_algorithm(name, Path())
    config = algorithm.configure({"path": name, "network": SMALL} | keys)
    server = algorithm.ParameterServer(config, space, Discrete(3))
    size = server.initial_parameters(0).size
    parameters = np.random.default_rng(7).normal(scale=2, size=size).astype(np.float32)
    client = FakeParameters(
        parameters, learning_rate=learning_rate, statistics=server.statistics(), target=server.target_interval()
    )
    if learning_rate == 0 and keys.get("subtract_mean_image"):  # the mean image does not change either
        size = client.statistics[MEAN_IMAGE].size
        mean = Moments(MEAN_IMAGE_FRAMES, np.full(size, 90.0), np.zeros(size))
        client.publish(parameters, {MEAN_IMAGE: mean})
    return make_agent(
        algorithm, config, space, Discrete(3),
        environments=environments, out_of_step=out_of_step, parameters=client, replay=replay,
    )  # fmt: skip


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize(("name", "space", "keys"), ON_POLICY)
def test_waiting_environment_gives_the_same_pushes(name: str, space: Space, keys: dict[str, Any], leaves: bool) -> None:
    """One environment that waits, with parameters that change, or that waits, leaves and comes.

    If it leaves, it chooses its next action later than in step, and so by other parameters.
    """
    found = []
    for idle in (0.0, 0.5):
        agent, client = new_agent(name, space, keys, 1, bool(idle), learning_rate=0.0 if leaves else 0.1)
        lives = Lives(space, [1], idle, leaves=leaves)
        play(agent, lives, 60)
        assert {decision.truncated for decision in lives.decisions[0]} == {False, True}
        found.append((client, [int(decision.action) for decision in lives.decisions[0]][:50]))
    (plain, actions), (ragged, same_actions) = found
    assert actions == same_actions
    assert len(set(actions)) > 1
    count = min(len(plain.pushes), len(ragged.pushes))
    assert count > 8
    for wanted, made in zip(plain.pushes[:count], ragged.pushes[:count], strict=True):
        assert (made.env_steps, made.gradient is None) == (wanted.env_steps, wanted.gradient is None)
        np.testing.assert_allclose(made.gradient, wanted.gradient, rtol=1e-4, atol=1e-6)
        for statistic, moments in wanted.statistics.items():
            np.testing.assert_allclose(made.statistics[statistic].mean, moments.mean, rtol=1e-6, atol=1e-9)
            assert made.statistics[statistic].count == moments.count


@pytest.mark.parametrize("name", ["async_q", "async_sarsa"])
def test_gradient_sums_over_the_steps_of_each_environment(name: str) -> None:
    """Each push is the mean, over environments with a step, of the gradients of their steps alone."""
    keys = GREEDY | {"normalize_rewards": None, "RMSProp": {"gradient_norm_clipping": None}}
    alone: list[list[np.ndarray]] = []
    for seed in (1, 2, 3):
        agent, client = new_agent(name, VECTOR, keys | {"update_interval": 1}, 1, False, learning_rate=0.0)
        play(agent, Lives(VECTOR, [seed]), 80)
        alone.append([push.gradient for push in client.pushes if push.gradient is not None])
    agent, client = new_agent(name, VECTOR, keys | {"update_interval": 4}, 3, True, learning_rate=0.0)
    lives = Lives(VECTOR, [1, 2, 3], idle=0.5)
    actions, begin, pushes = agent.reset(lives.reset()), np.zeros(3, np.int64), 0
    while pushes < 12:
        actions = agent.step(lives.step(actions))
        agent.learn()
        if len(client.pushes) > pushes:
            pushes, counts = len(client.pushes), np.array([len(each) for each in lives.decisions])
            rows = [sum(alone[i][begin[i] : counts[i]]) for i in range(3) if counts[i] > begin[i]]
            np.testing.assert_allclose(client.pushes[-1].gradient, sum(rows) / len(rows), rtol=1e-4, atol=1e-5)
            assert counts.max() == 4 or (counts - begin).max() == 4
            begin = counts


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", TARGETS)
def test_targets_equal_those_of_each_environment_in_step(name: str, double: bool) -> None:
    class Config:
        pass

    config = Config()
    config.double = double  # type: ignore[attr-defined]
    rng, gamma = np.random.default_rng(3), np.float32(0.5)
    spec = NetworkSpec(inputs=(2,), heads={"q": 3}, dense=(), lstm=1)

    def target_values(inputs: np.ndarray, state: np.ndarray | None = None) -> np.ndarray:
        values = inputs @ np.array([[1, -2, 3], [2, 1, -1]], np.float32)
        return values if state is None else values + state.sum(axis=-1, keepdims=True)

    lengths = (4, 1, 2)
    ragged = RaggedRollout(4, 3, spec, np.float32, value_shape=(3,), mask_size=3)
    plain = [Rollout(length, 1, spec, np.float32, value_shape=(3,), mask_size=3) for length in lengths]
    lives = Lives(VECTOR, [1, 2, 3], end=0.2)
    lives.reset()
    nothing = [np.zeros(3, np.int64)]
    for t in range(5):
        inputs, values = rng.normal(size=(2, 3, 3)).astype(np.float32)
        inputs, state = inputs[:, :2], rng.normal(size=(3, spec.state_size)).astype(np.float32)
        actions, restart, valid = rng.integers(0, 3, 3), np.zeros(3, np.bool_), rng.random((3, 3)) < 0.5
        valid[:, 0] = True
        ragged.act(inputs, actions, values, state, restart, valid)
        for i, rollout in enumerate(plain):
            if t <= lengths[i]:
                rows = slice(i, i + 1)
                rollout.act(*(array[rows] for array in (inputs, actions, values, state, restart, valid)))
        if t < 4:
            step = lives.step(nothing)
            held = t >= np.array(lengths)
            step.held, step.final_observations = held, None
            step.terminated, step.truncated = step.terminated & ~held, np.zeros(3, np.bool_)
            step.ended = step.restart = step.terminated
            ragged.outcome(step, step.rewards, gamma, None)
            for i, rollout in enumerate(plain):
                if not held[i]:
                    rollout.rewards[t], rollout.discounts[t] = step.rewards[i], gamma * ~step.terminated[i]
                    rollout.steps += 1
    taken = ragged.take()
    targets = TARGETS[name](taken, target_values, config)
    for i, rollout in enumerate(plain):
        assert rollout.full
        np.testing.assert_allclose(
            targets[: lengths[i], i], TARGETS[name](rollout, target_values, config)[:, 0], rtol=1e-6
        )


@pytest.mark.parametrize(("space", "keys"), [(VECTOR, {}), (IMAGE, {"network": CONVOLUTION, "history_len": 3})])
def test_replay_transitions_equal_those_of_environments_in_step(space: Space, keys: dict[str, Any]) -> None:
    section = REPLAY | {"n_step": 3, "epsilon": 0, "normalize_rewards": None, "priority_offset": 5} | keys
    wanted: dict[bytes, tuple[np.ndarray, ...]] = {}
    for seed in (1, 2, 3):
        wanted |= transitions_of(space, section, [seed], 0.0)
    found = transitions_of(space, section, [1, 2, 3], 0.5)
    assert len(found) > 150
    assert found.keys() <= wanted.keys()
    for key, transition in found.items():
        for mine, other in zip(transition, wanted[key], strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def transitions_of(space: Space, keys: dict[str, Any], seeds: list[int], idle: float) -> dict[bytes, tuple[Any, ...]]:
    """Return (action, reward, discount, next observation, priority) by observation."""
    algorithm = load_algorithm("apex", Path())
    config = algorithm.configure({"path": "apex", "network": SMALL} | keys)
    replay = local_replay(algorithm, config, space, Discrete(3), len(seeds))
    assert replay is not None
    agent, _ = new_agent("apex", space, keys, len(seeds), bool(idle), replay=replay)
    lives = Lives(space, seeds, idle)
    play(agent, lives, 90 if idle else 600)
    agent.reset(lives.reset())  # inserts the pending transitions
    drawn = replay.table.sample(40 * replay.table.size)
    state = state_of(replay.table, 1 << 20)
    priorities = dict(zip(state["keys"].tolist(), state["priorities"].tolist(), strict=True))
    columns, found = drawn.columns, {}
    for k, number in enumerate(drawn.keys.tolist()):
        following = columns["next_observation"][k] * (columns["discount"][k] > 0)  # arbitrary at an end
        rest = (columns["action"][k], columns["reward"][k], columns["discount"][k], following, priorities[number])
        found[columns["observation"][k].tobytes()] = rest
    return found
