"""Pushed gradients of the three algorithms, compared with gradients computed by loops for given episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete, TargetInterval, load_algorithm
from relaax.algorithm_base.testing import FakeParameters, make_agent
from support.scene import Script

GAMMA = 0.5
O = np.random.default_rng(1).normal(size=(9, 2, 2)).astype(np.float32)  # noqa: E741 - observations [time, environment]
F = np.random.default_rng(2).normal(size=(2, 2)).astype(np.float32)  # final observations
ONE_STEP = ("async_q", "async_sarsa")
ALL = (*ONE_STEP, "n_step_q")


class Scene(Script):
    """An agent whose values are linear in two numbers: Q(s, a) = s . W[:, a] + b[a], W [2, 2] and b [2] in `theta`.

    Its target network has other parameters, `theta_minus`. It acts greedily if `epsilon` is 0.
    """

    def __init__(
        self, name: str, length: int, environments: int = 2, epsilon: float = 0.0, refresh: int = 1000, **keys: Any
    ) -> None:
        algorithm = load_algorithm(name, Path())
        section = {
            "path": name,
            "update_interval": length,
            "rewards_gamma": GAMMA,
            "initial_epsilon": epsilon,
            "final_epsilons": [epsilon],
            "final_epsilon_probabilities": [1],
            "RMSProp": {"gradient_norm_clipping": None},
            "normalize_rewards": None,
            "held_out_states": 0,
            "network": {"dense": []},
        }
        self.theta, self.theta_minus = np.random.default_rng(7).normal(size=(2, 6)).astype(np.float32)
        self.parameters_client = FakeParameters(
            self.theta_minus, learning_rate=0.1, target=TargetInterval(updates=refresh)
        )
        self.parameters_client.publish(self.theta)
        agent, _ = make_agent(
            algorithm,
            algorithm.configure(section | keys),
            Box(-9, 9, shape=(2,)),
            Discrete(2),
            environments=environments,
            parameters=self.parameters_client,
        )
        super().__init__(agent, environments)

    def q(self, observation: np.ndarray) -> np.ndarray:
        return values(self.theta, observation)

    def q_minus(self, observation: np.ndarray) -> np.ndarray:
        return values(self.theta_minus, observation)

    def expect(self, push: int, examples: Sequence[tuple[np.ndarray, int, float]], environments: int = 2) -> None:
        """Check that a push is the gradient of the squared errors of (observation, action, target) by `theta`."""
        wanted = np.zeros(6)
        for observation, action, target in examples:
            error = self.q(observation)[action] - target
            by_w, by_b = wanted[:4].reshape(2, 2), wanted[4:]
            by_w[:, action] += 2 * error * observation / environments
            by_b[action] += 2 * error / environments
        found = self.parameters_client.pushes[push].gradient
        assert found is not None
        assert np.abs(wanted).max() > 1e-2
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def values(theta: np.ndarray, observation: np.ndarray) -> np.ndarray:
    theta = theta.astype(np.float64)
    q: np.ndarray = observation @ theta[:4].reshape(2, 2) + theta[4:]
    return q


def following(name: str, scene: Scene, t: int, i: int) -> float:
    """Return the value of observation t of environment i in the one-step methods."""
    q = scene.q_minus(O[t][i])
    return float(q.max() if name == "async_q" else q[scene.actions[t][i]])


@pytest.mark.parametrize("name", ONE_STEP)
def test_one_step_targets_use_the_target_network(name: str) -> None:
    scene = Scene(name, 3, epsilon=0.5)
    scene.reset(O[0])
    scene.step([1, -2], O[1])
    scene.step([0, 3], O[2])
    assert scene.parameters_client.pushes == []
    scene.step([5, 0.5], O[3])
    rewards = [(1, -2), (0, 3), (5, 0.5)]
    scene.expect(
        0,
        [
            (O[t][i], scene.actions[t][i], rewards[t][i] + GAMMA * following(name, scene, t + 1, i))
            for t in range(3)
            for i in range(2)
        ],
    )
    assert scene.parameters_client.pushes[0].env_steps == 6


def test_n_step_targets_extend_to_the_end_of_the_rollout() -> None:
    scene = Scene("n_step_q", 3, epsilon=0.5)
    scene.reset(O[0])
    scene.step([1, -2], O[1])
    scene.step([0, 3], O[2])
    scene.step([5, 0.5], O[3])
    examples = []
    for i, rewards in enumerate([(1, 0, 5), (-2, 3, 0.5)]):
        target = float(scene.q_minus(O[3][i]).max())
        for t in (2, 1, 0):
            target = rewards[t] + GAMMA * target
            examples.append((O[t][i], scene.actions[t][i], target))
    scene.expect(0, examples)


@pytest.mark.parametrize("name", ALL)
def test_only_truncated_episodes_bootstrap_the_final_value(name: str) -> None:
    scene = Scene(name, 2)
    scene.reset(O[0])
    scene.step([1, -2], O[1], terminated=[0], truncated=[1], final=F)
    scene.step([4, 8], O[2])
    # Without exploration Sarsa takes the online network's best action. The target network may prefer another.
    final = scene.q_minus(F[1])
    cut = float(final[scene.q(F[1]).argmax()] if name == "async_sarsa" else final.max())
    later = [
        float(scene.q_minus(O[2][i]).max()) if name == "n_step_q" else following(name, scene, 2, i) for i in range(2)
    ]
    scene.expect(
        0,
        [
            (O[0][0], scene.actions[0][0], 1.0),
            (O[0][1], scene.actions[0][1], -2 + GAMMA * cut),
            (O[1][0], scene.actions[1][0], 4 + GAMMA * later[0]),
            (O[1][1], scene.actions[1][1], 8 + GAMMA * later[1]),
        ],
    )


@pytest.mark.parametrize("name", ALL)
def test_void_transitions_are_ignored(name: str) -> None:
    scene = Scene(name, 3, environments=1)
    scene.reset(O[0][:1])
    scene.step([1], O[1][:1], terminated=[0], final=O[1][:1])  # NEXT_STEP: the observation is the final one
    scene.step([1e30], O[2][:1], first=[0])
    scene.step([5], O[3][:1])
    last = float(scene.q_minus(O[3][0]).max()) if name == "n_step_q" else following(name, scene, 3, 0)
    examples = [(O[0][0], scene.actions[0][0], 1.0), (O[2][0], scene.actions[2][0], 5 + GAMMA * last)]
    scene.expect(0, examples, environments=1)
    assert scene.parameters_client.pushes[0].env_steps == 2


@pytest.mark.parametrize("name", ["async_q", "n_step_q"])
def test_double_estimates_select_by_the_online_network(name: str) -> None:
    scene = Scene(name, 1, double=True)
    scene.reset(O[0])
    # The networks prefer different actions in the next observation of environment 0 and the final one of environment 1.
    candidates = np.random.default_rng(5).normal(size=(100, 2)).astype(np.float32)
    disputed = [o for o in candidates if scene.q(o).argmax() != scene.q_minus(o).argmax()]
    next_one, final = np.stack([disputed[0], O[1][1]]), np.stack([O[1][0], disputed[1]])
    scene.step([1, -2], next_one, truncated=[1], final=final)
    worth = [scene.q_minus(o)[scene.q(o).argmax()] for o in (next_one[0], final[1])]
    scene.expect(0, [(O[0][i], scene.actions[0][i], r + GAMMA * float(worth[i])) for i, r in enumerate((1.0, -2.0))])


@pytest.mark.parametrize("name", ALL)
def test_last_row_of_a_rollout_begins_the_next(name: str) -> None:
    scene = Scene(name, 1, environments=1)
    scene.reset(O[0][:1])
    scene.step([3], O[1][:1])
    scene.theta = np.array(scene.parameters_client.parameters)  # after one update
    scene.step([-1], O[2][:1])
    worth = float(scene.q_minus(O[2][0]).max()) if name != "async_sarsa" else following(name, scene, 2, 0)
    scene.expect(1, [(O[1][0], scene.actions[1][0], -1 + GAMMA * worth)], environments=1)
    assert scene.parameters_client.pulls == 1, "the reply to a push has the parameters"


def test_target_network_is_constant_until_its_refresh() -> None:
    scene = Scene("async_q", 1, environments=1, refresh=3)
    scene.reset(O[0][:1])
    for t in range(3):
        scene.theta = np.array(scene.parameters_client.parameters)
        if t == 2:  # the second push made version 3, and its reply has the refreshed target network
            scene.theta_minus = scene.theta
        scene.step([t], O[t + 1][:1])
        target = t + GAMMA * float(scene.q_minus(O[t + 1][0]).max())
        scene.expect(t, [(O[t][0], scene.actions[t][0], target)], environments=1)


def test_push_records_loss_and_gradient_norm() -> None:
    scene = Scene("async_q", 1, environments=1, epsilon=0.25)
    scene.reset(O[0][:1])
    scene.step([2.0], O[1][:1])
    scalars = dict(scene.parameters_client.scalars)
    chosen = scene.q(O[0][0])[scene.actions[0][0]]
    error = chosen - (2.0 + GAMMA * scene.q_minus(O[1][0]).max())
    assert scalars["loss"] == pytest.approx(error**2, rel=1e-4)
    assert scalars["loss/td_error"] == pytest.approx(abs(error), rel=1e-4)
    assert scalars["q/chosen"] == pytest.approx(chosen, rel=1e-4)
    assert scalars["epsilon"] == 0.25
    assert scalars["gradient/norm"] == pytest.approx(
        np.linalg.norm(scene.parameters_client.pushes[0].gradient), rel=1e-4
    )
    assert scene.parameters_client.pushes[0].loss == pytest.approx(scalars["loss"])
