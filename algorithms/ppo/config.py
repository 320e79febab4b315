"""The keys of ppo's configuration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from relaax.algorithm_base import Fixed, Free
from relaax.algorithm_base.config import AdamConfig

from ..da3c.model import PolicyConfig


class ClippedAdamConfig(AdamConfig):
    """Adam with the constants of OpenAI's implementation of PPO (Dhariwal et al. 2017, baselines, ppo2)."""

    epsilon: float = Field(1e-5, gt=0, description="Added to the root of the mean of squared gradients.")
    gradient_norm_clipping: float | None = Field(0.5, gt=0, description="Maximum norm of a gradient; null: no limit.")


class Config(PolicyConfig):
    """Distributed PPO."""

    name = "ppo"

    initial_learning_rate: Free[float] = Field(3e-4, gt=0, description="Learning rate at global step 0.")
    optimizer: Fixed[Literal["rms_prop", "adam", "momentum", "adagrad", "worker_rms_prop", "worker_momentum"]] = Field(
        "adam",
        description="Optimizer; with worker_, each worker has its own statistics.",
    )
    adam: Free[ClippedAdamConfig] = Field(ClippedAdamConfig(), alias="Adam", description="Adam.")
    episode_len: Free[int] = Field(128, ge=1, description="Steps of a rollout, T of the paper.")
    gae_lambda: Free[float] = Field(0.95, ge=0, le=1, description="Lambda of generalized advantage estimation.")
    overlap: Free[bool] = Field(
        False,
        description="Learn while the environments step. false: learn before sending the actions, in the paper's order.",
    )
    epochs: Free[int] = Field(4, ge=1, description="Passes over a rollout, K of the paper.")
    minibatches: Free[int] = Field(
        4,
        ge=1,
        description="Minibatches of an epoch, at most one for each step, or for each environment with `lstm`.",
    )
    clip: Free[float] = Field(
        0.2, gt=0, description="Bound of the ratio's distance from 1, epsilon of the paper's clipped objective."
    )
    normalize_advantages: Free[bool] = Field(
        True, description="Normalise the advantages of a minibatch: (A - mean) / std. Not in the paper."
    )
    value_clipping: Free[PositiveFloat | None] = Field(
        None,
        description="Bound of the value's change by a rollout, plus and minus; null: no bound. Not in the paper.",
    )
    target_kl: Free[PositiveFloat | None] = Field(
        None,
        description="End the epochs of a rollout at a minibatch with a larger approximate KL divergence; null: never. "
        "Not in the paper.",
    )
