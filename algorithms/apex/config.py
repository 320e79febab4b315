"""The keys of apex's configuration: those that gorila has too, with other defaults, and its exploration."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat

from relaax.algorithm_base import Fixed, Free
from relaax.algorithm_base.config import Centered, RMSPropConfig
from relaax.algorithm_base.exploration import ladder_of_epsilons

from .._value_based.model import Probability
from ..gorila.model import ReplayConfig


class CenteredRMSPropConfig(RMSPropConfig):
    """RMSProp, centered as in the paper (Graves 2013), with its constants.

    m <- decay m + (1 - decay) d, g <- decay g + (1 - decay) d^2, theta <- theta - rate d / sqrt(g - m^2 + epsilon).
    """

    decay: float = Field(0.95, ge=0, lt=1, description="Decay of the means of gradients and of their squares.")
    epsilon: float = Field(1.5e-7, gt=0, description="Added to the gradients' variance inside the square root.")
    centered: Centered = True


class Config(ReplayConfig):
    """Ape-X DQN. The defaults are those of the paper's Atari games; where one is not, its description says so."""

    name = "apex"

    initial_learning_rate: Free[float] = Field(
        6.25e-5, gt=0, description="Learning rate at global step 0: 0.00025 / 4."
    )
    rms_prop: Free[CenteredRMSPropConfig] = Field(
        CenteredRMSPropConfig(), alias="RMSProp", description="RMSProp, centered."
    )
    replay_capacity: Free[int] = Field(
        2_000_000,
        ge=1,
        description="Transitions that are kept, over all replay servers; in the paper it may overflow for up to 100 "
        "updates.",
    )
    batch_size: Free[int] = Field(512, ge=1, le=1_000, description="Transitions of an update.")
    samples_per_insert: Free[PositiveFloat | None] = Field(
        None,
        description="How often a transition is drawn, on average: actors and learners wait for each other to keep to "
        "it; null: nobody waits, as in the paper.",
    )
    n_step: Free[int] = Field(3, ge=1, le=100, description="Steps whose rewards a target has.")
    double: Free[bool] = Field(
        True, description="The online network says which action is best, the target network what it is worth."
    )
    dueling: Fixed[bool] = Field(
        True,
        description="The network estimates the value of a state and the advantages of its actions: for images each "
        "has a dense layer of its own, for vectors a network of its own.",
    )
    prioritized: Free[bool] = Field(
        True, description="Transitions are drawn by the size of their error (Schaul et al. 2016); false: uniformly."
    )
    final_importance_exponent: Free[Probability] = Field(
        0.4, description="The same at max_global_step, to which it goes in a straight line."
    )
    target_interval: Free[int] = Field(
        2_500, ge=1, description="Updates, by all learners, between two refreshes of the target network."
    )
    epsilon: Free[Probability] = Field(0.4, description="Share of random actions of the actor that explores most.")
    epsilon_exponent: Free[float] = Field(
        7.0, ge=0, description="How much less the others explore: actor i of N with epsilon^(1 + this x i / (N - 1))."
    )

    @property
    def actors_know_priorities(self) -> bool:
        return self.prioritized

    def exploration(self, frames: int, ranks: range, count: int) -> npt.NDArray[np.float64]:
        """Actor i of N explores with epsilon^(1 + alpha i / (N - 1)): i and N change when others connect or leave."""
        return ladder_of_epsilons(ranks, count or len(ranks), self.epsilon, self.epsilon_exponent)
