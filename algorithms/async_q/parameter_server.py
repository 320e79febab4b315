"""What the model is, for the parameter server."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import ParameterServerBase, TargetInterval
from relaax.algorithm_base.network import agent_statistics
from relaax.nn.initialization import orthogonal_parameters

from .network import action_values, value_network

HEAD_GAIN = 0.01
"""So small that all actions begin with nearly the same value, about 0."""


class ParameterServer(ParameterServerBase):
    """One value network, its target network, and a shared optimizer."""

    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        """Return orthogonal kernels, those of the heads small."""
        values = action_values(self.config, self.action_space)
        spec = value_network(self.config, self.observation_space, values)
        return orthogonal_parameters(spec, seed, dict.fromkeys(values.heads, HEAD_GAIN))

    def statistics(self) -> Mapping[str, int]:
        return agent_statistics(self.config, self.observation_space)

    def target_interval(self) -> TargetInterval:
        return TargetInterval(frames=self.config.target_interval)
