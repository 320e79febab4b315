"""Pushed gradients of an agent with an LSTM, compared with a network that is unrolled step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete, load_algorithm
from support.reference_actor_critic import Network, Stretch
from support.scene import GAMMA, Scene

DA3C = load_algorithm("da3c", Path())
VECTOR = Box(-9, 9, shape=(2,))
SHARED = Network(features=2, hidden=3, cells=2, trunks=[{"policy": 2, "value": 1}])
SEPARATE = Network(features=2, hidden=3, cells=2, trunks=[{"policy": 2}, {"value": 1}])
FEED_FORWARD = Network(features=2, hidden=3, cells=0, trunks=[{"policy": 2, "value": 1}])
O = np.random.default_rng(1).normal(size=(9, 2, 2)).astype(np.float32)  # noqa: E741 - observations [time, environment]
F = np.random.default_rng(2).normal(size=(2, 2)).astype(np.float32)  # final observations


def scene(environments: int = 2, network: Network = SHARED, **keys: Any) -> Scene:
    return Scene(DA3C, VECTOR, Discrete(2), environments, network, **keys)


def state_after(s: Scene, *inputs: Any, theta: np.ndarray | None = None, memory: Any = None) -> Any:
    """Return the LSTM state after these inputs."""
    return s.network.run(s.theta if theta is None else theta, inputs, memory)[1]


@pytest.mark.parametrize("network", [SHARED, SEPARATE], ids=["shared", "separate"])
def test_episodes_may_end_inside_a_rollout(network: Network) -> None:
    s = scene(network=network, episode_len=3)
    s.expect_rollout_with_ends(O, F)


def test_ended_episode_resets_only_its_own_state() -> None:
    s = scene(episode_len=2)
    s.reset(O[0])
    s.step([1, -2], O[1], terminated=[1], final=F)
    s.step([3, 0.5], O[2])
    end = 3 + GAMMA * s.value([O[0][0], O[1][0], O[2][0]])
    s.expect(
        0,
        [
            Stretch(O[:2, 0], s.act(0, 0, 1), [1 + GAMMA * end, end]),
            Stretch(O[:1, 1], s.act(1, 0), [-2]),
            Stretch(O[1:2, 1], s.act(1, 1), [0.5 + GAMMA * s.value([O[1][1], O[2][1]])]),
        ],
    )


def test_lstm_state_continues_across_rollouts() -> None:
    s = scene(1, episode_len=2)
    s.reset(O[0][:1])
    for t, reward in enumerate([1, -2, 3, 0.5]):
        s.step([reward], O[t + 1][:1])
    _, second = s.parameters_client.pushes
    updated = second.base.parameters
    assert not np.allclose(updated, s.theta)
    memory = state_after(s, O[0][0], O[1][0])  # with the parameters of the first rollout
    end = 0.5 + GAMMA * s.value([O[2][0], O[3][0], O[4][0]], memory, updated)
    s.expect(1, [Stretch(O[2:4, 0], s.act(0, 2, 3), [3 + GAMMA * end, end], memory)])


@pytest.mark.parametrize("truncated", [False, True])
def test_end_at_the_last_step_of_a_rollout(truncated: bool) -> None:
    s = scene(1, episode_len=2)
    s.reset(O[0][:1])
    s.step([1], O[1][:1])
    s.step([3], O[2][:1], terminated=[] if truncated else [0], truncated=[0] if truncated else [], final=F[:1])
    s.step([2], O[3][:1])
    s.step([4], O[4][:1])
    end = 3 + GAMMA * s.value([O[0][0], O[1][0], F[0]]) * truncated
    s.expect(0, [Stretch(O[:2, 0], s.act(0, 0, 1), [1 + GAMMA * end, end])])
    later = 4 + GAMMA * s.value([O[2][0], O[3][0], O[4][0]], theta=s.parameters_client.pushes[1].base.parameters)
    s.expect(1, [Stretch(O[2:4, 0], s.act(0, 2, 3), [2 + GAMMA * later, later])])


def test_next_step_episode_begins_with_a_zero_state() -> None:
    s = scene(1, episode_len=4)
    s.reset(O[0][:1])
    s.step([1], O[1][:1])
    s.step([3], O[2][:1], truncated=[0], final=O[2][:1])  # NEXT_STEP: the observation is the final one
    s.step([1e30], O[3][:1], first=[0])
    s.step([2], O[4][:1])
    end = 3 + GAMMA * s.value([O[0][0], O[1][0], O[2][0]])
    s.expect(
        0,
        [
            Stretch(O[:2, 0], s.act(0, 0, 1), [1 + GAMMA * end, end]),
            Stretch(O[3:4, 0], s.act(0, 3), [2 + GAMMA * s.value([O[3][0], O[4][0]])]),
        ],
    )
    assert s.parameters_client.pushes[0].env_steps == 3


def test_reset_clears_the_lstm_state() -> None:
    s = scene(1, episode_len=1)
    s.reset(O[5][:1])
    s.step([1], O[6][:1])
    s.reset(O[0][:1])
    s.step([1], O[1][:1])
    theta = s.parameters_client.pushes[1].base.parameters
    s.expect(1, [Stretch(O[:1, 0], s.act(0, 0), [1 + GAMMA * s.value([O[0][0], O[1][0]], theta=theta)])])


@pytest.mark.parametrize("network", [SHARED, FEED_FORWARD], ids=["lstm", "feed-forward"])
def test_gae_lambda_gives_generalized_advantages(network: Network) -> None:
    s = scene(1, network=network, episode_len=3, gae_lambda=0.5)
    s.reset(O[0][:1])
    for t, reward in enumerate([1, -2, 3]):
        s.step([reward], O[t + 1][:1])
    v = [s.value(O[: t + 1, 0]) for t in range(4)]
    deltas = [r + GAMMA * v[t + 1] - v[t] for t, r in enumerate([1, -2, 3])]
    a2 = deltas[2]
    a1 = deltas[1] + GAMMA * 0.5 * a2
    a0 = deltas[0] + GAMMA * 0.5 * a1
    targets = [a0 + v[0], a1 + v[1], a2 + v[2]]
    s.expect(0, [Stretch(O[:3, 0], s.act(0, 0, 1, 2), targets, advantages=[a0, a1, a2])])


def test_parameters_are_pulled_at_the_sync_interval() -> None:
    s = scene(1, episode_len=1, sync_interval=3)
    s.reset(O[0][:1])
    for t in range(7):
        s.step([1], O[t + 1][:1])
    assert [push.base.version for push in s.parameters_client.pushes] == [0, 0, 0, 3, 3, 3, 6]
    memory = state_after(s, O[0][0], O[1][0])
    s.expect(2, [Stretch(O[2:3, 0], s.act(0, 2), [1 + GAMMA * s.value([O[2][0], O[3][0]], memory)], memory)])


def test_rollback_pulls_parameters() -> None:
    s = scene(1, episode_len=1, sync_interval=2)
    s.parameters_client.discard.append("incarnation")
    s.reset(O[0][:1])
    for t in range(4):
        s.step([1], O[t + 1][:1])
    assert [push.base.version for push in s.parameters_client.pushes] == [0, 1, 1, 3]
