"""The keys of gorila's configuration, and those it shares with apex."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from relaax.algorithm_base import Fixed, Free, TargetInterval
from relaax.algorithm_base.acting.exploration import LinearAnnealing
from relaax.algorithm_base.config import Probability
from relaax.algorithm_base.network import NatureNetworkConfig

from .._replay.model import BundledConfig, ReplayConfig
from .._value_based.model import ActionValueConfig


class DeepQConfig(ReplayConfig, ActionValueConfig):
    """The keys that gorila and apex share."""

    network: Fixed[NatureNetworkConfig] = Field(NatureNetworkConfig(), description="The network.")
    errors: Free[Literal["squared", "huber"]] = Field(
        "huber",
        description="Loss of a value's error; squared in the papers of gorila and apex.",
    )
    double: Free[bool] = Field(
        False,
        description="Use double Q-learning (van Hasselt et al. 2016).",
    )
    demonstration_weight: Free[float] = Field(
        0.0,
        ge=0,
        description="Weight of the loss that makes an action of the client the best by a margin, for takeovers and "
        "recorded episodes; 1 in Hester et al. 2018 (DQfD).",
    )
    target_interval: Free[int] = Field(60_000, ge=1, description="Updates between refreshes of the target network.")

    @property
    def marks_demonstrations(self) -> bool:
        return super().marks_demonstrations or self.demonstration_weight > 0

    @property
    def target_renewal(self) -> TargetInterval:
        """Interval between two refreshes of the target network."""
        return TargetInterval(updates=self.target_interval)

    @abstractmethod
    def exploration(self, frames: int, ranks: range, count: int) -> npt.NDArray[np.float64]:
        """Return the probability of a random action: float64 [N], or one number for all actors.

        `ranks`: the ranks of the N actors among all `count` training actors.
        """


class Config(DeepQConfig, BundledConfig):
    """Gorila: deep Q-learning by many learners. A default that is not the paper's is marked in its description."""

    name = "gorila"

    initial_learning_rate: Free[float] = Field(
        1e-2, gt=0, description="Learning rate at global step 0; not given in the paper."
    )
    optimizer: Fixed[Literal["rms_prop", "adam", "momentum", "adagrad", "worker_rms_prop", "worker_momentum"]] = Field(
        "adagrad",
        description="Optimizer; with worker_, each learner has its own statistics.",
    )
    initial_epsilon: Free[Probability] = Field(1.0, description="Initial share of random actions.")
    final_epsilon: Free[Probability] = Field(0.1, description="Final share of random actions.")
    exploration_frames: Free[int] = Field(
        4_000_000,
        ge=0,
        description="Frames in which epsilon falls to its final value; in the paper, a million updates.",
    )

    def exploration(self, frames: int, ranks: range, count: int) -> npt.NDArray[np.float64]:
        """Return one epsilon for all actors; it falls linearly with the frames (Nair et al. 2015, Algorithm 1)."""
        epsilon = LinearAnnealing(self.initial_epsilon, self.final_epsilon, self.exploration_frames)
        return np.asarray(epsilon(frames), np.float64)
