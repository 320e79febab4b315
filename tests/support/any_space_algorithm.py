"""An algorithm for checks of the protocol: no TensorFlow, no learning, any spaces, or one; the smallest actions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentBase, ConfigBase, Leaves, ParameterServerBase, Step
from relaax.rlx import Box, Discrete, Space


class Config(ConfigBase):
    max_global_step: int = 1000
    only: str | None = None  # the one observation space that is known


class ParameterServer(ParameterServerBase):
    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        return np.zeros(1, np.float32)


class Agent(AgentBase):
    @classmethod
    def refusal(cls, config: Config, observation_space: Space, action_space: Space) -> str | None:
        if config.only not in (None, str(observation_space)):
            return f"only {config.only} is known"
        return None

    def reset(self, observations: Leaves) -> Leaves:
        return self._act()

    def step(self, step: Step) -> Leaves:
        return self._act()

    def _act(self) -> Leaves:
        leaves: Leaves = []
        for element in self.context.action_space.elements():
            least = element.start if isinstance(element, Discrete) else 0
            if isinstance(element, Box):
                least = np.where(np.isfinite(element.low), element.low, np.minimum(element.high, 0.0))
            leaves.append(np.broadcast_to(least, (self.context.environments, *element.shape)).astype(element.dtype))
        return leaves
