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
    """The network. What is left out is chosen by the observation: an image or a vector."""

    dense: list[PositiveInt] | None = Field([128], description="Widths of the fully connected layers.")
    lstm_size: int = Field(128, gt=0, description="Cells of the LSTM after the last of these layers, with `lstm`.")


class Config(ActorCriticConfig):
    """Distributed A3C for continuous actions."""

    initial_learning_rate: float = Field(1e-4, gt=0, description="Learning rate at global step 0.")
    reward_clipping: PositiveFloat | Literal["auto"] | None = Field(
        None, description="Rewards are cut to plus or minus this for learning, after normalisation; null: as they are."
    )
    normalize_observations: bool = Field(
        True, description="What of observations is no image is given to the network as (x - mean) / std, within +-10."
    )
    network: GaussianNetworkConfig = Field(GaussianNetworkConfig(), description="The network.")
    episode_len: Free[int] = Field(
        20, ge=1, description="Steps of a rollout, t_max of the paper; without effect with `whole_episodes`."
    )
    entropy_beta: Free[float] = Field(
        1e-3, ge=0, description="Weight of the policy's differential entropy; paper: 1e-4."
    )
    lstm: Fixed[bool] = Field(True, description="The network remembers: an LSTM layer of network.lstm_size cells.")
    spherical: Fixed[bool] = Field(False, description="One variance for all dimensions of an action, as in the paper.")
    initial_variance: Free[float] = Field(
        1.0, gt=1e-5, description="Of the first policy, in units in which bounded actions reach from -1 to 1."
    )
    whole_episodes: Free[bool] = Field(
        False, description="An update is one environment's whole episode, without bootstrap where it terminated."
    )
    longest_episode: Free[int] = Field(
        10_000, ge=1, description="With `whole_episodes`: longer ones are learned from in parts of this length."
    )

    def actions(self, space: Space) -> RealActions:
        """Return the policy: one normally distributed number for each of an action."""
        return RealActions(space, spherical=self.spherical)


class ParameterServer(ParameterServerBase):
    """One actor-critic network, a shared optimizer, and the statistics that inputs and rewards are normalised with."""

    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        """Return orthogonal kernels, those of heads so small that every policy begins with `initial_variance`."""
        policy = self.config.actions(self.action_space).policy
        spec = actor_critic_network(self.config, self.observation_space, policy)
        gains = {"mean": 0.01, "variance": 0.01, "value": 1.0}
        return orthogonal_parameters(spec, seed, gains, {"variance": inverse_softplus(self.config.initial_variance)})

    def statistics(self) -> Mapping[str, int]:
        return agent_statistics(self.config, self.observation_space)
