"""Overlap of learning and stepping: each rollout begins before the update of the previous one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete, StepResult, load_algorithm
from relaax.algorithm_base.testing import RandomEnvironments, live, make_agent
from support.reference_actor_critic import Network, Stretch, likelihood
from support.scene import GAMMA, Scene

DA3C = load_algorithm("da3c", Path())
VECTOR = Box(-9, 9, shape=(2,))
FEED_FORWARD = Network(features=2, hidden=3, cells=0, trunks=[{"policy": 2, "value": 1}])
LSTM = Network(features=2, hidden=3, cells=2, trunks=[{"policy": 2, "value": 1}])
O = np.random.default_rng(1).normal(size=(9, 2, 2)).astype(np.float32)  # noqa: E741 - observations [time, environment]
F = np.random.default_rng(2).normal(size=(2, 2)).astype(np.float32)  # final observations
SEEDS = {(0, False): 4, (0, True): 0, (2, False): 1, (2, True): 0}
"""Seeds by (LSTM cells, whether the update makes the previously drawn action less likely)."""
NOWHERE = np.zeros(1, np.bool_)


def scene(environments: int = 2, network: Network = FEED_FORWARD, **keys: Any) -> Scene:
    return Scene(DA3C, VECTOR, Discrete(2), environments, network, overlap=True, **keys)


@pytest.mark.parametrize("network", [FEED_FORWARD, LSTM], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize("unlikely", [False, True])
def test_first_action_of_a_rollout_is_importance_weighted(network: Network, unlikely: bool) -> None:
    s = scene(1, network, episode_len=2, seed=SEEDS[network.cells, unlikely])
    s.reset(O[0][:1])
    for t, reward in enumerate([1, -2, 3, 0.5, 4]):
        s.step([reward], O[t + 1][:1])
    first, second = s.parameters_client.pushes
    updated = second.base.parameters
    assert not np.allclose(updated, s.theta)
    # The first gradient is the same as without overlap.
    end = -2 + GAMMA * s.value([O[0][0], O[1][0], O[2][0]])
    s.expect(0, [Stretch(O[:2, 0], s.act(0, 0, 1), [1 + GAMMA * end, end])])
    # The action for O[2] was drawn before the update. Everything else uses the parameters after it.
    memory = s.network.run(s.theta, [O[0][0], O[1][0]])[1]
    (action,) = s.act(0, 2)
    ratio = np.exp(
        likelihood(s.network.run(updated, [O[2][0]], memory)[0][0], action)[0]
        - likelihood(s.network.run(s.theta, [O[2][0]], memory)[0][0], action)[0]
    )
    assert ratio < 0.95 if unlikely else ratio > 1.04
    target = 0.5 + GAMMA * s.value([O[2][0], O[3][0], O[4][0]], memory, updated)
    targets = [3 + GAMMA * target, target]
    values = [s.value(O[2 : 3 + t, 0], memory, updated) for t in range(2)]
    advantages = [min(1.0, ratio) * (targets[0] - values[0]), targets[1] - values[1]]
    s.expect(1, [Stretch(O[2:4, 0], s.act(0, 2, 3), targets, memory, advantages)])
    assert (first.env_steps, second.env_steps) == (2, 2)


@pytest.mark.parametrize("network", [FEED_FORWARD, LSTM], ids=["feed-forward", "lstm"])
def test_overlap_gives_equal_gradients_at_learning_rate_0(network: Network) -> None:
    """Episodes end in all ways at all steps of a rollout. Parameters are pulled after one or three rollouts."""
    pushed = []
    keys = {"episode_len": 3, "learning_rate": 0.0, "gae_lambda": 0.8}
    for overlap, interval in ((False, 1), (True, 1), (True, 3)):
        s = Scene(DA3C, VECTOR, Discrete(2), 3, network, overlap=overlap, sync_interval=interval, **keys)
        live(s.agent, RandomEnvironments(VECTOR, Discrete(2), 3, next_step=[True, False, False]), 42)
        pushed.append(s.parameters_client.pushes)
    assert len(pushed[0]) == 14
    for other in pushed[1:]:
        assert [push.env_steps for push in other] == [push.env_steps for push in pushed[0]]
        for push, reference in zip(other, pushed[0], strict=True):
            assert push.gradient is not None
            np.testing.assert_allclose(push.gradient, reference.gradient, rtol=1e-4, atol=1e-5)


def test_end_at_the_last_step_of_a_rollout() -> None:
    s = scene(episode_len=1, learning_rate=0.0)
    s.reset(O[0])
    s.step([3, 5], O[1], terminated=[0], truncated=[1], final=F)
    s.step([1, -2], O[2])
    s.expect(0, [Stretch(O[:1, 0], s.act(0, 0), [3]), Stretch(O[:1, 1], s.act(1, 0), [5 + GAMMA * s.value([F[1]])])])
    s.expect(1, [Stretch(O[1:2, i], s.act(i, 1), [r + GAMMA * s.value([O[2][i]])]) for i, r in enumerate([1, -2])])


def test_actions_are_returned_before_the_push() -> None:
    config = DA3C.configure({"path": "da3c", "episode_len": 1})
    agent, parameters_client = make_agent(DA3C, config, VECTOR, Discrete(2))
    agent.reset([O[0][:1]])
    agent.learn()
    agent.step(StepResult(np.ones(1), [O[1][:1]], NOWHERE, NOWHERE, NOWHERE))
    assert parameters_client.pushes == []
    agent.learn()
    agent.learn()
    assert len(parameters_client.pushes) == 1


def test_missing_learn_call_is_made_before_the_next_step() -> None:
    pushed = []
    for calls_learn in (True, False):
        agent, parameters_client = make_agent(
            DA3C, DA3C.configure({"path": "da3c", "episode_len": 2}), VECTOR, Discrete(2)
        )
        agent.reset([O[0][:1]])
        for t in range(7):
            agent.step(StepResult(np.ones(1), [O[t + 1][:1]], NOWHERE, NOWHERE, NOWHERE))
            if calls_learn:
                agent.learn()
        pushed.append([push.gradient for push in parameters_client.pushes])
    assert len(pushed[0]) == 3
    np.testing.assert_array_equal(pushed[0], pushed[1])


def test_reset_discards_the_first_row_of_the_next_rollout() -> None:
    s = scene(1, episode_len=2)
    s.reset(O[5][:1])
    s.step([100], O[6][:1])
    s.step([100], O[7][:1])
    updated = s.parameters_client.parameters
    s.reset(O[0][:1])
    s.step([1], O[1][:1])
    s.step([2], O[2][:1])
    target = 2 + GAMMA * s.value([O[2][0]], theta=updated)
    s.expect(1, [Stretch(O[:2, 0], s.act(0, 0, 1), [1 + GAMMA * target, target])])
    assert [push.env_steps for push in s.parameters_client.pushes] == [2, 2]


def test_reset_discards_a_full_rollout() -> None:
    agent, parameters_client = make_agent(DA3C, DA3C.configure({"path": "da3c", "episode_len": 1}), VECTOR, Discrete(2))
    agent.reset([O[0][:1]])
    agent.step(StepResult(np.ones(1), [O[1][:1]], NOWHERE, NOWHERE, NOWHERE))
    agent.reset([O[2][:1]])
    agent.learn()
    assert parameters_client.pushes == []


def test_without_overlap_step_pushes_the_rollout() -> None:
    config = DA3C.configure({"path": "da3c", "episode_len": 1, "overlap": False})
    agent, parameters_client = make_agent(DA3C, config, VECTOR, Discrete(2))
    agent.reset([O[0][:1]])
    agent.step(StepResult(np.ones(1), [O[1][:1]], NOWHERE, NOWHERE, NOWHERE))
    assert len(parameters_client.pushes) == 1
    agent.learn()
    assert len(parameters_client.pushes) == 1
