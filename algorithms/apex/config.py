"""The keys of apex's configuration: keys shared with gorila, with other defaults, and the exploration."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat

from relaax.algorithm_base import Fixed, Free
from relaax.algorithm_base.acting.exploration import ladder_of_epsilons
from relaax.algorithm_base.config import Centered, Probability, RMSPropConfig

from ..gorila.model import DeepQConfig


class CenteredRMSPropConfig(RMSPropConfig):
    """RMSProp, centered as in the paper (Graves 2013), with its constants.

    m <- decay m + (1 - decay) d, g <- decay g + (1 - decay) d^2, theta <- theta - rate d / sqrt(g - m^2 + epsilon).
    """

    decay: float = Field(0.95, ge=0, lt=1, description="Decay of the means of gradients and of their squares.")
    epsilon: float = Field(1.5e-7, gt=0, description="Added to the gradients' variance inside the square root.")
    centered: Centered = True


class Config(DeepQConfig):
    """Ape-X DQN. The defaults are the paper's for Atari games, unless a key's description gives another source."""

    name = "apex"

    initial_learning_rate: Free[float] = Field(6.25e-5, gt=0, description="Learning rate at global step 0.")
    rms_prop: Free[CenteredRMSPropConfig] = Field(
        CenteredRMSPropConfig(), alias="RMSProp", description="RMSProp, centered."
    )
    replay_capacity: Free[int] = Field(
        2_000_000,
        ge=1,
        description="Maximum transitions in all replay servers; the paper trims the memory every 100 updates.",
    )
    batch_size: Free[int] = Field(512, ge=1, le=1_000, description="Transitions of an update.")
    samples_per_insert: Free[PositiveFloat | None] = Field(
        None,
        description="How often a transition is sampled on average; actors and learners wait for each other to keep "
        "this average. null: no waiting, as in the paper.",
    )
    n_step: Free[int] = Field(3, ge=1, le=100, description="Number of rewards in a target.")
    double: Free[bool] = Field(
        True,
        description="Use double Q-learning (van Hasselt et al. 2016).",
    )
    dueling: Fixed[bool] = Field(
        True,
        description="Estimate a state's value and its actions' advantages.",
    )
    prioritized: Free[bool] = Field(True, description="Sample by the size of errors (Schaul et al. 2016).")
    final_importance_exponent: Free[Probability] = Field(0.4, description="Importance exponent at max_global_step.")
    target_interval: Free[int] = Field(2_500, ge=1, description="Updates between refreshes of the target network.")
    epsilon: Free[Probability] = Field(
        0.4, description="Share of random actions of actor 0, the largest of all actors."
    )
    epsilon_exponent: Free[float] = Field(7.0, ge=0, description="alpha of the paper, in the exponent of epsilon.")

    @property
    def actors_set_priorities(self) -> bool:
        return self.prioritized

    def exploration(self, frames: int, ranks: range, count: int) -> npt.NDArray[np.float64]:
        """Return epsilon^(1 + alpha i / (N - 1)) for actor i of N; both change when clients connect or disconnect."""
        return ladder_of_epsilons(ranks, count or len(ranks), self.epsilon, self.epsilon_exponent)
