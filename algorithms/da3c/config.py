"""The keys of da3c's configuration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from relaax.algorithm_base import ConfigBase, Fixed, Free
from relaax.algorithm_base.network import NetworkConfig


class Config(ConfigBase):
    """Distributed A3C."""

    episode_len: Free[int] = Field(5, ge=1, description="Steps of a rollout, t_max of the paper.")
    rewards_gamma: Fixed[float] = Field(0.99, ge=0, le=1, description="Discount of the reward one step later.")
    gae_lambda: Free[float] = Field(
        1.0, ge=0, le=1, description="Lambda of generalized advantages; 1 means the n-step returns of the paper."
    )
    entropy_beta: Free[float] = Field(
        0.01, ge=0, description="Weight of the policy's entropy, against early certainty."
    )
    value_loss_weight: Free[float] = Field(0.5, gt=0, description="Weight of the squared error of the value.")
    reward_clipping: Fixed[PositiveFloat | Literal["auto"] | None] = Field(
        "auto",
        description="Rewards are cut to plus or minus this for learning, after normalisation and never in what is "
        "reported; null leaves them as they are, auto means 1 for images and null for vectors.",
    )
    normalize_observations: Fixed[bool] = Field(
        False, description="Observations that are no images are given to the network as (x - mean) / std, within +-10."
    )
    subtract_mean_image: Fixed[bool] = Field(
        False, description="Images are given to the network without the mean of the first 20,000 frames."
    )
    normalize_rewards: Fixed[Literal["auto", "scale", "standardize"] | None] = Field(
        "auto",
        description="For learning, never in what is reported: scale divides by the standard deviation of the "
        "discounted return so far, standardize gives (r - mean) / std; null leaves them as they are, auto means scale "
        "for vectors and null for images.",
    )
    overlap: Free[bool] = Field(
        True,
        description="A worker learns while its environments step: the first action of a rollout is then that of "
        "parameters one update older. false: it learns before it answers, in the paper's order.",
    )
    history_len: Fixed[int | None] = Field(
        None, ge=1, le=16, description="Frames that are stacked, for images; by default 4, and 1 for images of bool."
    )
    network: Fixed[NetworkConfig] = Field(NetworkConfig(), description="The network.")
    greedy_exploit: Free[bool] = Field(True, description="In exploit mode take the most probable action.")
    lstm: Fixed[bool] = Field(False, description="The network remembers: an LSTM layer of network.lstm_size cells.")
