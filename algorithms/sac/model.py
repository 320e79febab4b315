"""The keys of sac's configuration, and its model for the parameter server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat, PositiveInt

from relaax.algorithm_base import Fixed, Free, TargetInterval
from relaax.algorithm_base.network import NatureNetworkConfig
from relaax.nn.squashed_gaussian import squashed_heads

from .._continuous.model import ContinuousConfig, ContinuousParameterServer
from .._replay.model import BundledConfig

LOG_TEMPERATURE = "log_temperature"


class WideNetworkConfig(NatureNetworkConfig):
    """The network, for images that of Mnih et al. 2015. Defaults of missing keys depend on the observation."""

    dense: list[PositiveInt] | None = Field([256, 256], description="Widths of dense layers; null: as for gorila.")
    activation: Literal["relu", "tanh"] | None = Field("relu", description="Activation between layers.")


class Config(ContinuousConfig, BundledConfig):
    """Soft actor-critic. The defaults are those of Haarnoja et al. 2018 (Algorithms and Applications, table 1)."""

    name = "sac"

    initial_learning_rate: Free[float] = Field(3e-4, gt=0, description="Learning rate at global step 0.")
    network: Fixed[WideNetworkConfig] = Field(WideNetworkConfig(), description="The network.")
    learner: Fixed[Literal["bundled", "separate"]] = Field(
        "separate",
        description="separate: relaax-learner processes learn from one shared memory. bundled: each worker learns "
        "from its own memory.",
    )
    learning_starts: Free[int] = Field(1_000, ge=1, description="Transitions before the first sample.")
    batch_size: Free[int] = Field(256, ge=1, le=1_000, description="Transitions of an update.")
    samples_per_insert: Free[PositiveFloat | None] = Field(
        256.0,
        description="How often a transition is sampled on average; actors and learners wait for each other to keep "
        "this average. With batches of 256, 256 is one update for each step, as in the paper. null: no waiting.",
    )
    actor_interval: Free[int] = Field(
        10, ge=1, description="Steps after which an agent without a learner reports steps and pulls parameters."
    )
    tau: Free[float] = Field(
        0.005, gt=0, le=1, description="Share of the new parameters in the target networks after each update."
    )
    initial_temperature: Free[float] = Field(1.0, gt=0, description="Weight of the entropy at global step 0.")
    temperature_learning_rate: Free[PositiveFloat | None] = Field(
        None, description="Learning rate of the temperature at global step 0; null: initial_learning_rate."
    )
    learn_temperature: Free[bool] = Field(
        True, description="Learn the temperature, so that the entropy approaches `target_entropy`."
    )
    target_entropy: Free[float | None] = Field(
        None, description="Entropy in nats that the temperature is learned for. null: minus the action's numbers."
    )

    @property
    def critics(self) -> tuple[str, ...]:
        return "q1", "q2"

    @property
    def target_renewal(self) -> TargetInterval:
        return TargetInterval(updates=1, tau=self.tau)

    def policy_heads(self, actions: int) -> Mapping[str, int]:
        return squashed_heads(actions)


class ParameterServer(ContinuousParameterServer):
    """Policy, twin critics and the temperature in one vector."""

    def initial_numbers(self) -> npt.NDArray[np.float32]:
        return np.array([math.log(self.config.initial_temperature)], np.float32)

    def rates_of_numbers(self) -> dict[str, float | None]:
        return {LOG_TEMPERATURE: self.config.temperature_learning_rate}
