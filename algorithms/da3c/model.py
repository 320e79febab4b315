"""The keys of da3c's configuration, and its model for the parameter server."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import ParameterServerBase
from relaax.algorithm_base.actions import HEAD, DiscreteActions
from relaax.algorithm_base.network import ActorCriticConfig, actor_critic_network, agent_statistics
from relaax.nn.initialization import orthogonal_parameters


class Config(ActorCriticConfig):
    """Distributed A3C."""


class ParameterServer(ParameterServerBase):
    """One actor-critic network, a shared optimizer, and the statistics that normalise inputs and rewards."""

    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        """Return orthogonal kernels. The policy's are small, so that at first all actions are about equally likely."""
        spec = actor_critic_network(self.config, self.observation_space, DiscreteActions(self.action_space).policy)
        return orthogonal_parameters(spec, seed, {HEAD: 0.01, "value": 1.0})

    def statistics(self) -> Mapping[str, int]:
        return agent_statistics(self.config, self.observation_space)
