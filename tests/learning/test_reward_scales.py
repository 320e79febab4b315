"""Value methods with replay memory learn with default keys at any scale of rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete, Leaves, StepResult, load_algorithm
from relaax.algorithm_base.testing import make_agent
from support.gym_training import OptimizerClient
from support.slow_parameters import fast_and_slow
from support.training import judge

ENVIRONMENTS = 8
SIGNS = 3
KEYS: dict[str, Any] = {
    "initial_learning_rate": 1e-3,
    "optimizer": "adam",
    "replay_capacity": 10_000,
    "learning_starts": 200,
    "batch_size": 32,
    "samples_per_insert": 8,
    "target_interval": 100,
    "network": {"dense": [32]},
    "seed": 3,
}
OWN_KEYS: dict[str, dict[str, Any]] = {"gorila": {"exploration_frames": 5_000}, "apex": {"actor_interval": 10}}


class Match:
    """Environments that show one of three signs. The action with its number earns `scale`. 20 steps per episode."""

    observation_space = Box(0, 1, (SIGNS,))
    action_space = Discrete(SIGNS)

    def __init__(self, environments: int, scale: float, seed: int) -> None:
        self.environments, self._scale = environments, scale
        self._rng = np.random.default_rng(seed)
        self._time = 0

    def reset(self) -> Leaves:
        return self._draw()

    def step(self, actions: Leaves) -> StepResult:
        rewards = self._scale * self.matches(actions)
        self._time += 1
        final, ended = self._draw(), self._time % 20 == 0
        observations = self._draw() if ended else final
        nowhere, everywhere = np.zeros(self.environments, np.bool_), np.full(self.environments, ended)
        return StepResult(rewards, observations, nowhere, everywhere, nowhere, final if ended else None)

    def matches(self, actions: Leaves) -> np.ndarray:
        return actions[0] == self._signs

    def _draw(self) -> Leaves:
        self._signs = self._rng.integers(0, SIGNS, self.environments)
        return [np.eye(SIGNS, dtype=np.float32)[self._signs]]


@pytest.mark.parametrize(
    "scale",
    fast_and_slow(
        [1e-3, 1000.0], [1000.0], "relaax/algorithm_base", "relaax/replay", "algorithms/gorila", "algorithms/apex"
    ),
)
@pytest.mark.parametrize("name", OWN_KEYS)
def test_learning_does_not_depend_on_the_reward_scale(name: str, scale: float) -> None:
    algorithm = load_algorithm(name, Path())
    section = KEYS | OWN_KEYS[name]
    config = algorithm.configure({"path": name} | section)
    envs = Match(ENVIRONMENTS, scale, seed=4)
    spaces = envs.observation_space, envs.action_space
    parameters_client = OptimizerClient(algorithm, config, *spaces)
    agent, _ = make_agent(algorithm, config, *spaces, environments=ENVIRONMENTS, parameters=parameters_client)
    actions = agent.reset(envs.reset())
    for _ in range(1_000):
        actions = agent.step(envs.step(actions))
        agent.learn()
    judged = Match(1000, scale, seed=5)
    right = judged.matches(judge(algorithm, section, judged, 1000, parameters_client).reset(judged.reset()))
    assert right.mean() > 0.99
