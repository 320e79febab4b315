"""What da3c's model is, for the parameter server."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import ParameterServerBase
from relaax.tf.networks import orthogonal_parameters

from .network import actor_critic


class ParameterServer(ParameterServerBase):
    """One actor-critic network and shared RMSProp."""

    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        """Orthogonal kernels; a policy head so small that all actions begin equally likely."""
        spec = actor_critic(self.config, self.observation_space, self.action_space)
        return orthogonal_parameters(spec, seed, {"policy": 0.01, "value": 1.0})
