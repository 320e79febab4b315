"""Training in the test's process: an agent, environments, and a small parameter server in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from relaax.algorithm_base import AgentBase, Leaves, Space, StepResult, TargetInterval
from relaax.algorithm_base.testing import FakeParameters, make_agent
from relaax.hosting.loader import Algorithm


class World(Protocol):
    """N environments."""

    observation_space: Space
    action_space: Space
    environments: int

    def reset(self) -> Leaves: ...

    def step(self, actions: Leaves) -> StepResult: ...


class RMSPropClient(FakeParameters):
    """Shared RMSProp (Mnih et al. 2016, equations S2 and S3) in numpy. The learning rate falls linearly to zero."""

    def __init__(
        self,
        parameters: np.ndarray,
        updates: int,
        learning_rate: float = 0.05,
        statistics: Mapping[str, int] = MappingProxyType({}),
        target: TargetInterval | None = None,
        learning_rates: Sequence[tuple[int, float]] = (),
    ) -> None:
        options: dict[str, Any] = {"statistics": statistics, "target": target, "learning_rates": learning_rates}
        super().__init__(parameters, learning_rate=learning_rate, **options)
        self._updates = updates
        self._mean_square = np.zeros_like(parameters)

    def apply(self, gradient: np.ndarray) -> np.ndarray:
        self._mean_square = 0.99 * self._mean_square + 0.01 * gradient**2
        rate = np.float32(self.learning_rate * max(0.0, 1 - len(self.pushes) / self._updates))
        return self.parameters - rate * self.rate_factors * gradient / np.sqrt(self._mean_square + np.float32(0.01))


def train(
    algorithm: Algorithm,
    section: Mapping[str, Any],
    envs: World,
    updates: int,
    learning_rate: float = 0.05,
    out_of_step: bool = False,
) -> RMSPropClient:
    """Train an agent for `updates` updates, and return its parameters."""
    config = algorithm.configure({"path": algorithm.name, "seed": 3} | dict(section))
    server = algorithm.ParameterServer(config, envs.observation_space, envs.action_space)
    parameters = server.initial_parameters(config.seed)
    declared = server.statistics(), server.target_interval(), server.learning_rates()
    parameters_client = RMSPropClient(parameters, updates, learning_rate, *declared)
    agent, _ = make_agent(
        algorithm,
        config,
        envs.observation_space,
        envs.action_space,
        environments=envs.environments,
        parameters=parameters_client,
        out_of_step=out_of_step,
    )
    actions = agent.reset(envs.reset())
    while len(parameters_client.pushes) < updates:
        actions = agent.step(envs.step(actions))
        agent.learn()
    return parameters_client


def judge(
    algorithm: Algorithm, section: Mapping[str, Any], envs: World, environments: int, trained: FakeParameters
) -> AgentBase:
    """Return an agent in exploit mode with the trained parameters."""
    config = algorithm.configure({"path": algorithm.name, "seed": 3} | dict(section))
    statistics = {name: moments.size for name, moments in trained.statistics.items()}
    parameters_client = FakeParameters(trained.parameters, statistics=statistics)
    parameters_client.publish(trained.parameters, trained.statistics)
    agent, _ = make_agent(
        algorithm,
        config,
        envs.observation_space,
        envs.action_space,
        environments=environments,
        exploit=True,
        parameters=parameters_client,
    )
    return agent


def mean_reward(agent: AgentBase, envs: World, steps: int) -> float:
    """Return the mean reward of a step, without first steps of episodes in NEXT_STEP mode."""
    total, count = 0.0, 0
    actions = agent.reset(envs.reset())
    for _ in range(steps):
        step = envs.step(actions)
        total += float(step.rewards[~step.first].sum())
        count += step.env_steps
        actions = agent.step(step)
    return total / count
