"""The keys of gorila's configuration, with those that apex shares, its replay memory, and its model."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat, model_validator

from relaax.algorithm_base import Fixed, Free, ReplayBase, Space, TableDeclaration, TargetInterval
from relaax.algorithm_base.exploration import LinearAnnealing
from relaax.algorithm_base.network import NatureNetworkConfig, image_part
from relaax.algorithm_base.transitions import ObservationLayout, transition_table

from .._value_based.model import ActionValueConfig, Probability
from .._value_based.model import ParameterServer as ParameterServer

_REMOVERS: dict[str, Literal["fifo", "lowest_priority"]] = {"oldest": "fifo", "lowest_priority": "lowest_priority"}


class ReplayConfig(ActionValueConfig):
    """The keys of both."""

    anneal_learning_rate: Free[bool] = Field(
        False,
        description="Bring the learning rate down to zero at max_global_step, linearly. The papers give no schedule.",
    )
    network: Fixed[NatureNetworkConfig] = Field(NatureNetworkConfig(), description="The network.")
    errors: Free[Literal["squared", "huber"]] = Field(
        "huber",
        description="What an error of the value costs: Huber's loss, as in Mnih et al. 2015, or its square, as the "
        "papers write it.",
    )
    replay_capacity: Free[int] = Field(
        1_000_000, ge=1, description="Transitions that are kept, over all replay servers."
    )
    removal: Free[Literal["oldest", "lowest_priority"]] = Field(
        "oldest",
        description="What goes when the memory is full. lowest_priority, of equal ones the oldest, needs prioritized. "
        "There is room for as many frames of images as transitions: where those that stay need more, the "
        "oldest go, too.",
    )
    learning_starts: Free[int] = Field(
        50_000,
        ge=1,
        description="Transitions before the first is drawn, as in Horgan et al. 2018 and Mnih et al. 2015; Nair et al. "
        "2015 do not give it.",
    )
    batch_size: Free[int] = Field(
        32,
        ge=1,
        le=1_000,
        description="Transitions of an update, as in Mnih et al. 2015; the paper does not give it.",
    )
    samples_per_insert: Free[PositiveFloat | None] = Field(
        8.0,
        description="How often a transition is drawn, on average: actors and learners wait for each other to keep to "
        "it. The default is a batch of 32 for 4 steps, as in Mnih et al. 2015; Algorithm 1 of Nair et al. 2015 draws "
        "a batch at every step. null: none waits.",
    )
    n_step: Free[int] = Field(1, ge=1, le=100, description="Steps whose rewards a target has.")
    double: Free[bool] = Field(
        False, description="The online network says which action is best, the target network what it is worth."
    )
    prioritized: Free[bool] = Field(
        False, description="Transitions are drawn by the size of their error (Schaul et al. 2016); false: uniformly."
    )
    priority_exponent: Free[Probability] = Field(
        0.6, description="With `prioritized`: exponent of the priorities, alpha of the paper."
    )
    importance_exponent: Free[Probability] = Field(
        0.4, description="Exponent of the importance weights at the beginning, beta of the paper."
    )
    final_importance_exponent: Free[Probability] = Field(
        1.0, description="The same at max_global_step, to which it goes in a straight line."
    )
    priority_offset: Free[float] = Field(
        1e-6,
        gt=0,
        description="Added to the size of an error, so that what has none is drawn now and then as well. "
        "The papers do not give it.",
    )
    target_interval: Free[int] = Field(
        60_000, ge=1, description="Updates, by all learners, between two refreshes of the target network."
    )
    actor_interval: Free[int] = Field(
        100,
        ge=1,
        description="Steps after which an agent that has no learner of its own says how many it has taken, and fetches "
        "parameters.",
    )

    @model_validator(mode="after")
    def _there_is_room_to_begin(self) -> ReplayConfig:
        if self.learning_starts > self.replay_capacity:
            raise ValueError(
                f"learning_starts is {self.learning_starts}, and replay_capacity {self.replay_capacity}: learning "
                "would never begin; make it smaller, or the memory larger"
            )
        return self

    @model_validator(mode="after")
    def _what_goes_by_priority_has_one(self) -> ReplayConfig:
        if self.removal == "lowest_priority" and not self.prioritized:
            raise ValueError(
                "removal is lowest_priority, and without `prioritized` no transition has a priority of its own: set "
                "prioritized to true, or removal to oldest"
            )
        return self

    @property
    def target_renewal(self) -> TargetInterval:
        """How often the target network is renewed."""
        return TargetInterval(updates=self.target_interval)

    @property
    def bundled(self) -> bool:
        """Whether each worker learns, from a memory of its own."""
        return False

    @property
    def actors_know_priorities(self) -> bool:
        """Whether a transition comes with a priority; else it has the largest until it is learned from."""
        return False

    @abstractmethod
    def exploration(self, frames: int, ranks: range, count: int) -> npt.NDArray[np.float64]:
        """Return the share of random actions of the actors of these ranks among `count`, float64 [N] or one for all."""

    def layout(self, observation_space: Space) -> ObservationLayout:
        """Return how observations are stored."""
        return ObservationLayout(observation_space, self.history_len, image_part(self.network, observation_space))


class Config(ReplayConfig):
    """Gorila: deep Q-learning by many learners. Where a default is not the paper's, its description says so."""

    name = "gorila"

    initial_learning_rate: Free[float] = Field(
        1e-2, gt=0, description="Learning rate at global step 0. The paper does not give it."
    )
    optimizer: Fixed[Literal["rms_prop", "adam", "momentum", "adagrad", "worker_rms_prop", "worker_momentum"]] = Field(
        "adagrad",
        description="Which of the next sections is used. Its statistics are shared by all learners; with worker_ "
        "before its name each has its own, and sends updates in place of gradients.",
    )
    learner: Fixed[Literal["bundled", "separate"]] = Field(
        "bundled",
        description="bundled: each worker learns besides, from a memory of its own at the replay servers; separate: "
        "processes of their own do (relaax-learner), from one memory for all.",
    )
    initial_epsilon: Free[Probability] = Field(1.0, description="Share of random actions at the beginning.")
    final_epsilon: Free[Probability] = Field(0.1, description="Share of random actions in the end.")
    exploration_frames: Free[int] = Field(
        4_000_000,
        ge=0,
        description="Frames, over all workers, in which epsilon falls from the first to the last; in the paper the "
        "first million updates of the parameter server.",
    )

    @model_validator(mode="after")
    def _a_bundle_is_held_to_something(self) -> Config:
        if self.bundled and self.samples_per_insert is None:
            raise ValueError(
                "samples_per_insert says how many updates a worker makes beside its steps, and is null; give a number, "
                "or set learner to separate"
            )
        return self

    @property
    def bundled(self) -> bool:
        return self.learner == "bundled"

    def exploration(self, frames: int, ranks: range, count: int) -> npt.NDArray[np.float64]:
        """Epsilon falls in a straight line, for all actors alike (Nair et al. 2015, Algorithm 1)."""
        epsilon = LinearAnnealing(self.initial_epsilon, self.final_epsilon, self.exploration_frames)
        return np.asarray(epsilon(frames), np.float64)


class Replay(ReplayBase):
    """Transitions, drawn uniformly or by priority; the oldest go first, or those of the lowest priority."""

    def table(self) -> TableDeclaration:
        config: ReplayConfig = self.config
        layout = config.layout(self.observation_space)
        exponent = config.priority_exponent if config.prioritized else None
        return TableDeclaration(
            transition_table(layout, config.replay_capacity, exponent, _REMOVERS[config.removal]),
            samples_per_insert=config.samples_per_insert,
            min_size=config.learning_starts,
        )

    @classmethod
    def bundled(cls, config: ReplayConfig) -> bool:
        return config.bundled
