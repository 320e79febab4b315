"""The keys of da3c_cont's configuration: those of da3c, other defaults, and a few more."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from relaax.algorithm_base import Fixed, Free
from relaax.algorithm_base.network import NetworkConfig

from ..da3c.config import Config as ActorCriticConfig


class GaussianNetworkConfig(NetworkConfig):
    """The network. What is left out is chosen by the observation: an image or a vector."""

    dense: list[PositiveInt] | None = Field([128], description="Widths of the fully connected layers.")
    lstm_size: int = Field(128, gt=0, description="Cells of the LSTM after the last of these layers, with `lstm`.")


class Config(ActorCriticConfig):
    """Distributed A3C for continuous actions."""

    initial_learning_rate: float = Field(1e-4, gt=0, description="Learning rate at global step 0.")
    episode_len: int = Field(
        20, ge=1, description="Steps of a rollout, t_max of the paper; without effect with `whole_episodes`."
    )
    entropy_beta: float = Field(1e-3, ge=0, description="Weight of the policy's differential entropy; paper: 1e-4.")
    reward_clipping: PositiveFloat | Literal["auto"] | None = Field(
        None, description="Rewards are cut to plus or minus this for learning, after normalisation; null: as they are."
    )
    lstm: bool = Field(True, description="The network remembers: an LSTM layer of network.lstm_size cells.")
    network: GaussianNetworkConfig = Field(GaussianNetworkConfig(), description="The network.")
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
    normalize_observations: bool = Field(
        True, description="What of observations is no image is given to the network as (x - mean) / std, within +-10."
    )
