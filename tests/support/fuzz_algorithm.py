"""An algorithm for fuzz tests: any spaces, and actions computed from the first number of each observation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentBase, ConfigBase, Leaves, ParameterServerBase, StepResult
from relaax.rlx import Box, Discrete, ElementarySpace, Space


class Config(ConfigBase):
    max_global_step: int = 1000
    only: str | None = None  # the only supported observation space; None: all


class ParameterServer(ParameterServerBase):
    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        return np.zeros(1, np.float32)


class Agent(AgentBase):
    out_of_step = chosen_actions = True

    @classmethod
    def refusal(cls, config: Config, observation_space: Space, action_space: Space) -> str | None:
        if config.only not in (None, str(observation_space)):
            return f"only {config.only} is supported"
        return None

    def reset(self, observations: Leaves) -> Leaves:
        return self._act(observations)

    def step(self, step: StepResult) -> Leaves:
        return self._act(step.observations)

    def _act(self, observations: Leaves) -> Leaves:
        first = observations[0].reshape(self.context.environments, -1)[:, 0]
        return [_action(element, first) for element in self.context.action_space.elements()]


def _action(element: ElementarySpace, first: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    environments = len(first)
    if isinstance(element, Discrete) and element.n <= 1000:
        remainder = np.mod(first.astype(np.float64), element.n)
        return element.start + np.clip(remainder.astype(np.int64), 0, element.n - 1)
    action = np.zeros((environments, *element.shape), element.dtype)
    if isinstance(element, Discrete):
        action += element.start
    elif isinstance(element, Box):
        action += np.clip(0.0, element.low, element.high).astype(element.dtype)
    return action
