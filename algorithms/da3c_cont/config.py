"""The keys of da3c_cont's configuration: the keys of da3c, with the defaults for physical control."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from relaax.algorithm_base import Fixed, Free
from relaax.algorithm_base.network import NetworkConfig

from ..da3c.model import Config as Da3cConfig


class GaussianNetworkConfig(NetworkConfig):
    """The network. Defaults of missing keys depend on the observation: an image or a vector."""

    dense: list[PositiveInt] | None = Field([128], description="Widths of dense layers.")
    lstm_size: int = Field(128, gt=0, description="Cells of the LSTM after these layers, with `lstm`.")


class Config(Da3cConfig):
    """Distributed A3C for continuous actions."""

    name = "da3c_cont"

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
