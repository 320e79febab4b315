from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import AgentBase, Box, Discrete, Space, StepResult, load_algorithm
from relaax.algorithm_base.testing import FakeParameters, RandomEnvironments, make_agent

DA3C = load_algorithm("da3c", Path())
VECTOR = Box(-1, 1, shape=(2,))
IMAGE = Box(0, 255, shape=(8, 8), dtype=np.uint8)
SMALL = {"network": {"convolutions": [{"filters": 2, "kernel": 4, "stride": 2}], "dense": [4]}}


def agent_with(
    parameters: np.ndarray | None = None, space: Space = VECTOR, actions: int = 2, **options: Any
) -> tuple[AgentBase, FakeParameters]:
    keys = options.pop("keys", {})
    parameters_client = None if parameters is None else FakeParameters(parameters.astype(np.float32))
    config = DA3C.configure({"path": "da3c", "normalize_rewards": None} | keys)
    return make_agent(DA3C, config, space, Discrete(actions), parameters=parameters_client, **options)


def constant_policy(action_logits: list[float]) -> np.ndarray:
    """Return parameters of a network without hidden layers. Its policy ignores the observations."""
    n = len(action_logits)
    return np.array([*[0.0] * (2 * n), *action_logits, 0.0, 0.0, 0.0])


LINEAR: dict[str, Any] = {"network": {"dense": [], "separate": False}}


def test_actions_are_sampled_from_the_policy() -> None:
    # softmax([log 3, 0]) = [3/4, 1/4]; over 8000 samples the standard deviation is 0.005.
    agent, _ = agent_with(constant_policy([np.log(3.0), 0.0]), environments=8000, keys=LINEAR)
    (actions,) = agent.reset([np.zeros((8000, 2), np.float32)])
    assert actions.mean() == pytest.approx(0.25, abs=0.02)
    assert actions.dtype == np.int64


def test_each_actor_draws_different_numbers() -> None:
    drawn = []
    for first_actor in (0, 0, 1):
        agent, _ = agent_with(constant_policy([0.0, 0.0]), environments=100, first_actor=first_actor, keys=LINEAR)
        drawn.append(agent.reset([np.zeros((100, 2), np.float32)])[0].tolist())
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@pytest.mark.parametrize(("keys", "repeated"), [({}, 0.625), ({"persistence": 10}, 0.9625)])
def test_persistent_actions_keep_their_probabilities(keys: dict[str, Any], repeated: float) -> None:
    # Of independent actions, (3/4)^2 + (1/4)^2 = 0.625 repeat the last one. 9 of 10 environments keep their numbers.
    agent, _ = agent_with(constant_policy([np.log(3.0), 0.0]), environments=8000, keys=LINEAR | keys)
    envs = RandomEnvironments(VECTOR, Discrete(2), 8000)
    actions, shares = agent.reset(envs.reset()), list[float]()
    for _ in range(4):  # fewer than episode_len, so the policy is the same
        before, actions = actions[0].copy(), agent.step(envs.step(actions))
        assert actions[0].mean() == pytest.approx(0.25, abs=0.02)
        shares.append(float((actions[0] == before).mean()))
    assert shares == pytest.approx([repeated] * 4, abs=0.02)


def test_exploit_does_not_repeat_sampled_actions() -> None:
    keys = LINEAR | {"greedy_exploit": False, "persistence": 1000}
    agent, _ = agent_with(constant_policy([0.0, 0.0]), environments=200, exploit=True, keys=keys)
    envs = RandomEnvironments(VECTOR, Discrete(2), 200)
    first = agent.reset(envs.reset())[0].copy()
    assert 50 < np.count_nonzero(agent.step(envs.step([first]))[0] == first) < 150


def test_exploit_takes_the_most_probable_action() -> None:
    agent, parameters_client = agent_with(
        constant_policy([0.0, 0.02, 0.01]), actions=3, environments=50, exploit=True, keys=LINEAR
    )
    envs = RandomEnvironments(VECTOR, Discrete(3), 50)
    actions = agent.reset(envs.reset())
    for _ in range(30):
        assert set(actions[0].tolist()) == {1}
        actions = agent.step(envs.step(actions))
    assert parameters_client.pushes == []
    assert parameters_client.scalars == []


def test_exploit_samples_without_greedy_exploit() -> None:
    agent, _ = agent_with(
        constant_policy([0.0, 0.0]), environments=50, exploit=True, keys=LINEAR | {"greedy_exploit": False}
    )
    assert set(agent.reset([np.zeros((50, 2), np.float32)])[0].tolist()) == {0, 1}


def test_exploit_pulls_parameters_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, parameters_client = agent_with(constant_policy([1.0, 0.0]), exploit=True, keys=LINEAR)
    envs = RandomEnvironments(VECTOR, Discrete(2), 1)
    actions = agent.reset(envs.reset())
    parameters_client.publish(constant_policy([0.0, 1.0]))
    actions = agent.step(envs.step(actions))
    assert (actions[0].tolist(), parameters_client.pulls) == ([0], 1), "parameters are not pulled at every step"
    monkeypatch.setattr("relaax.algorithm_base.exchange.EXPLOIT_PULL_SECONDS", -1.0)
    actions = agent.step(envs.step(actions))
    assert (actions[0].tolist(), parameters_client.pulls) == ([1], 2)


def test_agent_does_not_keep_or_change_its_arguments() -> None:
    """The worker may reuse its buffers."""
    pushed = []
    for overwrite in (False, True):
        agent, parameters_client = agent_with(space=IMAGE, environments=2, keys=SMALL)
        envs = RandomEnvironments(IMAGE, Discrete(2), 2)
        observations = envs.reset()
        actions = agent.reset(observations)
        for _ in range(5):
            step = envs.step(actions)
            for leaf in (*step.observations, *(step.final_observations or [])):
                leaf.flags.writeable = False
            actions = agent.step(step)
            if overwrite:
                for leaf in (*step.observations, *(step.final_observations or [])):
                    leaf.flags.writeable = True
                    leaf[...] = 77
                step.rewards.flags.writeable = True
                step.rewards[:] = -1e6
            agent.learn()
        pushed.append(parameters_client.pushes[0].gradient)
    np.testing.assert_allclose(pushed[0], pushed[1], rtol=1e-4, atol=1e-6)


def test_returned_actions_never_change() -> None:
    agent, _ = agent_with(environments=4)
    envs = RandomEnvironments(VECTOR, Discrete(2), 4)
    actions = agent.reset(envs.reset())
    for _ in range(12):
        kept = actions[0].copy()
        following = agent.step(envs.step(actions))
        np.testing.assert_array_equal(actions[0], kept)
        actions = following


def test_gradient_is_a_mean_over_environments() -> None:
    """Two environments with the same observations push the gradient of one."""
    gradients = []
    for n in (1, 2):
        agent, parameters_client = agent_with(
            environments=n, keys={"episode_len": 1, "entropy_beta": 0.0} | LINEAR, actions=1
        )
        agent.reset([np.full((n, 2), 0.5, np.float32)])
        nowhere = np.zeros(n, np.bool_)
        agent.step(StepResult(np.full(n, 2.0), [np.full((n, 2), -0.5, np.float32)], nowhere, nowhere, nowhere))
        agent.learn()
        gradients.append(parameters_client.pushes[0].gradient)
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-5)
    assert np.abs(gradients[0]).max() > 0.1
