"""Training on whole episodes, with one update after each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, load_algorithm
from relaax.algorithm_base.testing import RandomEnvironments, live
from support.reference_actor_critic import Network, Stretch, likelihood
from support.scene import GAMMA, Scene

DA3C_CONT = load_algorithm("da3c_cont", Path())
VECTOR, FORCES = Box(-9, 9, shape=(2,)), Box(shape=(1,))
LSTM = Network(features=2, hidden=3, cells=2, trunks=[{"mean": 1, "variance": 1, "value": 1}])
FEED_FORWARD = Network(features=2, hidden=3, cells=0, trunks=[{"mean": 1, "variance": 1, "value": 1}])
O = np.random.default_rng(1).normal(size=(12, 2, 2)).astype(np.float32)  # noqa: E741 - [time, environment]
F = np.random.default_rng(2).normal(size=(2, 2)).astype(np.float32)  # final observations


def scene(environments: int = 1, network: Network = LSTM, **keys: Any) -> Scene:
    keys = {"normalize_observations": False, "whole_episodes": True, "learning_rate": 0.0} | keys
    return Scene(DA3C_CONT, VECTOR, FORCES, environments, network, **keys)


@pytest.mark.parametrize("network", [LSTM, FEED_FORWARD], ids=["lstm", "feed-forward"])
def test_target_of_an_episode_is_its_discounted_rewards(network: Network) -> None:
    s = scene(network=network, learning_rate=0.5)
    s.reset(O[0][:1])
    s.step([1], O[1][:1])
    s.step([-2], O[2][:1])
    assert s.parameters_client.pushes == []
    s.step([4], O[3][:1], terminated=[0], final=F[:1])
    # At discount 0.9: 4, -2 + 3.6 = 1.6, 1 + 1.44 = 2.44. A terminated episode has no bootstrap.
    s.expect(0, [Stretch(O[:3, 0], s.act(0, 0, 1, 2), [2.44, 1.6, 4.0])])
    s.step([0.5], O[4][:1])
    s.step([2], O[5][:1], terminated=[0], final=F[:1])
    s.expect(1, [Stretch(O[3:5, 0], s.act(0, 3, 4), [2.3, 2.0])])
    assert [push.env_steps for push in s.parameters_client.pushes] == [3, 2]
    assert [push.base.version for push in s.parameters_client.pushes] == [0, 1]


def test_truncated_episode_bootstraps_the_final_value() -> None:
    s = scene()
    s.reset(O[0][:1])
    s.step([1], O[1][:1])
    s.step([4], O[2][:1], truncated=[0], final=F[:1])
    end = 4 + GAMMA * s.value([O[0][0], O[1][0], F[0]])
    s.expect(0, [Stretch(O[:2, 0], s.act(0, 0, 1), [1 + GAMMA * end, end])])


def test_each_environment_ends_at_its_own_step() -> None:
    s = scene(2)
    s.reset(O[0])
    s.step([1, 10], O[1])
    s.step(
        [2, 20], O[2], terminated=[1], final=O[2]
    )  # NEXT_STEP: the next episode of environment 1 begins one step later
    s.step([3, 1e30], O[3], first=[1])
    s.step([4, 30], O[4], terminated=[0, 1], final=F)
    s.expect(0, [Stretch(O[:2, 1], s.act(1, 0, 1), [28.0, 20.0])], environments=1)
    r2 = 3 + GAMMA * 4
    r1 = 2 + GAMMA * r2
    # Two episodes of different lengths that end in the same step make one update.
    together = [
        Stretch(O[:4, 0], s.act(0, 0, 1, 2, 3), [1 + GAMMA * r1, r1, r2, 4]),
        Stretch(O[3:4, 1], s.act(1, 3), [30.0]),
    ]
    s.expect(1, together, environments=2)
    # The next push counts the steps of all episodes.
    assert [push.env_steps for push in s.parameters_client.pushes] == [4, 3]


def test_gae_lambda_applies_to_whole_episodes() -> None:
    s = scene(network=FEED_FORWARD, gae_lambda=0.5)
    s.reset(O[0][:1])
    s.step([1], O[1][:1])
    s.step([4], O[2][:1], terminated=[0], final=F[:1])
    v = [s.value([O[t][0]]) for t in range(2)]
    a1 = 4 - v[1]
    a0 = 1 + GAMMA * v[1] - v[0] + GAMMA * 0.5 * a1
    s.expect(0, [Stretch(O[:2, 0], s.act(0, 0, 1), [a0 + v[0], 4], advantages=[a0, a1])])


@pytest.mark.parametrize("last", [[0], [1], [0, 1]])
def test_different_ends_in_one_step_make_one_update(last: list[int]) -> None:
    s = scene(2, longest_episode=2)
    s.reset(O[0])
    s.step([1, 10], O[1])
    s.step([2, 20], O[2], terminated=last, final=F)
    ends = [r + GAMMA * s.value(O[:3, i]) * (i not in last) for i, r in enumerate([2, 20])]
    firsts = [r + GAMMA * end for r, end in zip([1, 10], ends, strict=True)]
    s.expect(0, [Stretch(O[:2, i], s.act(i, 0, 1), [firsts[i], ends[i]]) for i in range(2)])


def test_episode_beyond_longest_episode_is_split() -> None:
    s = scene(longest_episode=2)
    s.reset(O[0][:1])
    for t, reward in enumerate([1, 2, 3]):
        s.step([reward], O[t + 1][:1])
    s.step([4], O[4][:1], terminated=[0], final=F[:1])
    end = 2 + GAMMA * s.value(O[:3, 0])
    s.expect(0, [Stretch(O[:2, 0], s.act(0, 0, 1), [1 + GAMMA * end, end])])
    memory = s.network.run(s.theta, O[:2, 0])[1]
    s.expect(1, [Stretch(O[2:4, 0], s.act(0, 2, 3), [3 + GAMMA * 4, 4.0], memory)])


def test_reset_discards_pending_episodes() -> None:
    s = scene()
    s.reset(O[5][:1])
    s.step([100], O[6][:1])
    s.reset(O[0][:1])
    s.step([1], O[1][:1], terminated=[0], final=F[:1])
    s.expect(0, [Stretch(O[:1, 0], s.act(0, 0), [1.0])])
    assert s.parameters_client.pushes[0].env_steps == 1


@pytest.mark.slow
@pytest.mark.checks("algorithms/da3c_cont", "relaax/algorithm_base")
def test_buffer_grows_with_the_longest_episode() -> None:
    s = scene(network=FEED_FORWARD, rewards_gamma=1.0)
    s.reset(O[0][:1])
    for t in range(699):
        s.step([1], O[t % 12][:1])
    s.step([1], O[0][:1], terminated=[0], final=F[:1])
    inputs = [O[0][0], *(O[t % 12][0] for t in range(699))]
    s.expect(0, [Stretch(inputs, s.act(0, *range(700)), [float(700 - t) for t in range(700)])])


@pytest.mark.parametrize("network", [LSTM, FEED_FORWARD], ids=["lstm", "feed-forward"])
def test_overlap_gives_equal_gradients_at_learning_rate_0(network: Network) -> None:
    """Several episodes end at once, in all ways, and some exceed `longest_episode`."""
    pushed = []
    for overlap in (False, True):
        s = scene(3, network, overlap=overlap, longest_episode=4, gae_lambda=0.8)
        live(s.agent, RandomEnvironments(VECTOR, FORCES, 3, next_step=[True, False, False]), 40)
        pushed.append(s.parameters_client.pushes)
    assert len(pushed[0]) > 15
    assert [push.env_steps for push in pushed[0]] == [push.env_steps for push in pushed[1]]
    for mine, reference in zip(*pushed, strict=True):
        np.testing.assert_allclose(mine.gradient, reference.gradient, rtol=1e-4, atol=1e-5)


def test_first_action_of_an_episode_is_importance_weighted() -> None:
    s = scene(learning_rate=0.5, overlap=True)
    s.reset(O[0][:1])
    s.step([1], O[1][:1])
    s.step([4], O[2][:1], terminated=[0], final=F[:1])
    s.step([0.5], O[3][:1])
    s.step([2], O[4][:1], terminated=[0], final=F[:1])
    s.expect(0, [Stretch(O[:2, 0], s.act(0, 0, 1), [4.6, 4.0])])
    updated = s.parameters_client.pushes[1].base.parameters
    assert not np.allclose(updated, s.theta)
    # Everything except the first action uses the newest parameters.
    then, now = (likelihood(s.network.run(theta, [O[2][0]])[0][0], s.act(0, 2)[0])[0] for theta in (s.theta, updated))
    weight = np.exp(now - then)
    assert 0.001 < weight < 0.9
    values = [s.value(O[2 : 3 + t, 0], theta=updated) for t in range(2)]
    advantages = [weight * (2.3 - values[0]), 2.0 - values[1]]
    s.expect(1, [Stretch(O[2:4, 0], s.act(0, 2, 3), [2.3, 2.0], advantages=advantages)])
