"""What da3c's model is, for the parameter server."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import ParameterServerBase
from relaax.algorithm_base.network import agent_statistics
from relaax.nn.initialization import orthogonal_parameters

from .actions import HEAD, policy_of
from .network import actor_critic


class ParameterServer(ParameterServerBase):
    """One actor-critic network, a shared optimizer, and the statistics that inputs and rewards are normalised with."""

    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        """Orthogonal kernels; a policy head so small that all actions begin equally likely."""
        spec = actor_critic(self.config, self.observation_space, policy_of(self.action_space))
        return orthogonal_parameters(spec, seed, {HEAD: 0.01, "value": 1.0})

    def statistics(self) -> Mapping[str, int]:
        return agent_statistics(self.config, self.observation_space)
