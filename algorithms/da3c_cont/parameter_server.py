"""What da3c_cont's model is, for the parameter server."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relaax.nn.distributions import inverse_softplus
from relaax.nn.initialization import orthogonal_parameters

from ..da3c.network import actor_critic
from ..da3c.parameter_server import ParameterServer as ActorCriticServer
from .actions import gaussian


class ParameterServer(ActorCriticServer):
    """The same as da3c's but for the heads of the network."""

    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        """Orthogonal kernels; heads so small that every policy begins in the middle, with `initial_variance`."""
        spec = actor_critic(self.config, self.observation_space, gaussian(self.config, self.action_space))
        gains = {"mean": 0.01, "variance": 0.01, "value": 1.0}
        return orthogonal_parameters(spec, seed, gains, {"variance": inverse_softplus(self.config.initial_variance)})
