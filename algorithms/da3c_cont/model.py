"""The keys of da3c_cont's configuration, and its model for the parameter server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat, PositiveInt

from relaax.algorithm_base import Fixed, Free, ParameterServerBase, Space
from relaax.algorithm_base.actions import RealActions
from relaax.algorithm_base.network import ActorCriticConfig, NetworkConfig, actor_critic_network, agent_statistics
from relaax.nn.distributions import inverse_softplus
from relaax.nn.initialization import orthogonal_parameters


class GaussianNetworkConfig(NetworkConfig):
    """The network. Defaults of missing keys depend on the observation: an image or a vector."""

    dense: list[PositiveInt] | None = Field([128], description="Widths of dense layers.")
    lstm_size: int = Field(128, gt=0, description="Cells of the LSTM after these layers, with `lstm`.")


class Config(ActorCriticConfig):
    """Distributed A3C for continuous actions."""

    initial_learning_rate: float = Field(1e-4, gt=0, description="Learning rate at global step 0.")
    reward_clipping: PositiveFloat | Literal["auto"] | None = Field(
        None,
        description="Bound of normalised rewards for learning, plus and minus.",
    )
    normalize_observations: bool = Field(
        True, description="Normalise observations except images: (x - mean) / std, clipped to +-10."
    )
    network: GaussianNetworkConfig = Field(GaussianNetworkConfig(), description="The network.")
    episode_len: Free[int] = Field(
        20, ge=1, description="Steps of a rollout, t_max of the paper; no effect with `whole_episodes`."
    )
    entropy_beta: Free[float] = Field(
        1e-3, ge=0, description="Weight of the policy's differential entropy; 1e-4 in the paper."
    )
    lstm: Fixed[bool] = Field(True, description="Add an LSTM layer of network.lstm_size cells.")
    spherical: Fixed[bool] = Field(False, description="One variance for all dimensions, as in the paper.")
    initial_variance: Free[float] = Field(
        1.0, gt=1e-5, description="Initial variance of actions whose bounds are -1 and 1."
    )
    whole_episodes: Free[bool] = Field(False, description="Compute each update from one environment's whole episode.")
    longest_episode: Free[int] = Field(
        10_000, ge=1, description="Longer episodes are split into parts of this length, with `whole_episodes`."
    )

    def actions(self, space: Space) -> RealActions:
        """Return the Gaussian policy: one normally distributed number for each dimension of an action."""
        return RealActions(space, spherical=self.spherical)


class ParameterServer(ParameterServerBase):
    """One actor-critic network, a shared optimizer, and the statistics that normalise inputs and rewards."""

    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        """Return orthogonal kernels. The heads' are small, so that at first every policy has `initial_variance`."""
        policy = self.config.actions(self.action_space).policy
        spec = actor_critic_network(self.config, self.observation_space, policy)
        gains = {"mean": 0.01, "variance": 0.01, "value": 1.0}
        return orthogonal_parameters(spec, seed, gains, {"variance": inverse_softplus(self.config.initial_variance)})

    def statistics(self) -> Mapping[str, int]:
        return agent_statistics(self.config, self.observation_space)
