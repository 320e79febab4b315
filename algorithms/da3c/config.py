"""The keys of da3c's configuration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from relaax.algorithm_base import ConfigBase, Fixed, Free, Section


class ConvolutionConfig(Section):
    """One convolution without padding."""

    filters: int = Field(gt=0, description="Number of filters.")
    kernel: int = Field(gt=0, description="Side of a filter, in pixels.")
    stride: int = Field(gt=0, description="Pixels between two applications.")


class NetworkConfig(Section):
    """The network. What is left out is chosen by the observation: an image or a vector."""

    convolutions: list[ConvolutionConfig] | None = Field(
        None,
        description="For images; by default 16 filters 8x8 stride 4, then 32 filters 4x4 stride 2. For images with a "
        "side below 36 pixels: 16 filters 4x4 stride 2, then 32 filters 3x3; below 16: 16 filters 3x3.",
    )
    dense: list[PositiveInt] | None = Field(
        None,
        description="Widths of the fully connected layers; by default [256] for images, [128] for those with a side "
        "below 16 pixels, [64, 64] for vectors.",
    )
    activation: Literal["relu", "tanh"] | None = Field(
        None, description="Between layers; by default relu for images, tanh for vectors."
    )
    separate: bool | None = Field(
        None,
        description="Policy and value have networks of their own; by default true for vectors without `lstm`, else "
        "false.",
    )
    flatten_images: Free[bool] = Field(
        False,
        description="What looks like an image, with two axes of 16 or more, and gets no convolutions (one of floats, "
        "one beside other parts) is taken as numbers side by side. false: such observations are refused.",
    )
    lstm_size: int = Field(256, gt=0, description="Cells of the LSTM after the last of these layers, with `lstm`.")


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
