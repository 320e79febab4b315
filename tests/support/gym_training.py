"""Training in the process of the test: Gymnasium environments, one agent, and the parameter server's optimizer."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from relaax.algorithm_base import Box, Discrete, StepResult
from relaax.algorithm_base.testing import FakeParameters, make_agent
from relaax.hosting.loader import Algorithm
from relaax.optim.host_optimizers import create
from relaax.optim.learning_rates import check_rate_factors
from relaax.optim.vector import HostVector
from support.training import judge


class OptimizerClient(FakeParameters):
    """A parameters client that applies gradients as the parameter server of an algorithm does."""

    def __init__(self, algorithm: Algorithm, config: Any, *spaces: Any) -> None:
        server = algorithm.ParameterServer(config, *spaces)
        parameters = server.initial_parameters(config.seed)
        super().__init__(parameters, statistics=server.statistics(), target=server.target_interval())
        self._schedule = config.schedule
        factors = check_rate_factors(server.learning_rates(), parameters.size)
        self._optimizer = create(server.optimizer(), parameters.size, factors)
        self._vector = HostVector(parameters)

    def apply(self, gradient: np.ndarray) -> np.ndarray:
        self._optimizer.apply(self._vector, gradient, self._schedule(self.global_step))
        self.pushes.clear()  # they would use much memory
        self.scalars.clear()
        return self._vector.snapshot()


class GymnasiumEnvironments:
    """N Gymnasium environments of one kind, with the interface for an agent."""

    def __init__(self, name: str, environments: int, seed: int) -> None:
        same_step = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        self._environments = gymnasium.make_vec(name, environments, vectorization_mode="sync", vector_kwargs=same_step)
        self._seed = seed
        self.environments = environments
        box, choices = self._environments.single_observation_space, self._environments.single_action_space
        self.observation_space, self.action_space = Box(box.low, box.high, box.shape), Discrete(int(choices.n))

    def reset(self) -> list[np.ndarray]:
        return [self._environments.reset(seed=self._seed)[0]]

    def step(self, actions: list[np.ndarray]) -> StepResult:
        seen, rewards, terminated, truncated, info = self._environments.step(actions[0])
        final = None
        if "final_obs" in info:
            final = [
                np.array([row if last is None else last for row, last in zip(seen, info["final_obs"], strict=True)])
            ]
        return StepResult(rewards, [seen], terminated, truncated, np.zeros(len(rewards), np.bool_), final)


class GymnasiumTraining:
    """One agent and its learner, in `environments` environments of one kind."""

    def __init__(self, algorithm: Algorithm, section: dict[str, Any], name: str, environments: int) -> None:
        self._algorithm, self._section, self._name = algorithm, section, name
        self.config = algorithm.configure({"path": algorithm.name} | section)
        self.environments = GymnasiumEnvironments(name, environments, self.config.seed)
        self._spaces = self.environments.observation_space, self.environments.action_space
        self.parameters = OptimizerClient(algorithm, self.config, *self._spaces)
        self._agent, _ = make_agent(
            algorithm, self.config, *self._spaces, environments=environments, parameters=self.parameters
        )
        self._actions = self._agent.reset(self.environments.reset())
        self.env_steps = 0

    def run(self, env_steps: int) -> None:
        """Train until there were `env_steps` steps in all."""
        while self.env_steps < env_steps:
            self._agent.learn()
            step = self.environments.step(self._actions)
            self._actions = self._agent.step(step)
            self.env_steps += step.env_steps

    def greedy_return(self, episodes: int, seed: int = 1_000_000) -> float:
        """Return the mean return of greedy episodes with the current parameters."""
        evaluated = GymnasiumEnvironments(self._name, episodes, seed)
        agent = judge(self._algorithm, self._section, evaluated, episodes, self.parameters)
        actions, running, total = agent.reset(evaluated.reset()), np.ones(episodes, np.bool_), 0.0
        while running.any():
            step = evaluated.step(actions)
            total += float(step.rewards[running].sum())
            running &= ~step.ended
            actions = agent.step(step)
        return total / episodes
