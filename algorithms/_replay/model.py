"""The keys of all algorithms with replay memory, and the memory's table."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat, model_validator

from relaax.algorithm_base import Fixed, Free, ReplayBase, Space, TableDeclaration
from relaax.algorithm_base.acting.masks import mask_size, without_mask
from relaax.algorithm_base.config import Probability
from relaax.algorithm_base.network import AgentConfig, image_part
from relaax.algorithm_base.transitions import (
    DISCRETE_ACTION,
    INSERT_SIZE,
    MAX_DEMONSTRATION_PRIORITY,
    ObservationLayout,
    Remover,
    transition_table,
)
from relaax.algorithm_base.transitions import Field as TableField

_REMOVERS: dict[str, Remover] = {
    "oldest": "fifo",
    "lowest_priority": "lowest_priority",
    "inverse_priority": "inverse_priority",
}


class ReplayConfig(AgentConfig):
    """The keys of all algorithms with replay memory."""

    name: ClassVar[str]
    """Name of the algorithm in messages."""

    anneal_learning_rate: Free[bool] = Field(
        False,
        description="Decrease the learning rate linearly to zero at max_global_step; the papers give no schedule.",
    )
    replay_capacity: Free[int] = Field(1_000_000, ge=1, description="Maximum transitions in all replay servers.")
    removal: Free[Literal["oldest", "lowest_priority", "inverse_priority"]] = Field(
        "oldest",
        description="Which transition to evict from a full memory. inverse_priority: a random one, in proportion to "
        "priority ** removal_exponent (Horgan et al. 2018, Ape-X DPG). All but oldest need `prioritized`.",
    )
    removal_exponent: Free[float] = Field(
        -0.4,
        ge=-1,
        le=0,
        description="Exponent of priorities for removal inverse_priority, alpha_evict of Horgan et al. 2018.",
    )
    learning_starts: Free[int] = Field(
        50_000,
        ge=1,
        description="Transitions before the first sample (Mnih et al. 2015, Horgan et al. 2018).",
    )
    batch_size: Free[int] = Field(
        32,
        ge=1,
        le=1_000,
        description="Transitions of an update, as in Mnih et al. 2015.",
    )
    samples_per_insert: Free[PositiveFloat | None] = Field(
        8.0,
        description="How often a transition is sampled on average; actors and learners wait for each other to keep "
        "this average. null: no waiting. In Algorithm 1 of Nair et al. 2015 it is 32.",
    )
    actors_wait: Free[bool] = Field(
        True,
        description="Whether actors wait for slower learners. false: environments never wait, and transitions may be "
        "sampled less often than `samples_per_insert`.",
    )
    n_step: Free[int] = Field(1, ge=1, le=100, description="Number of rewards in a target.")
    prioritized: Free[bool] = Field(False, description="Sample by the size of errors (Schaul et al. 2016).")
    priority_exponent: Free[Probability] = Field(0.6, description="Exponent of the priorities, alpha of the paper.")
    importance_exponent: Free[Probability] = Field(
        0.4, description="Exponent of the importance weights at global step 0, beta of the paper."
    )
    final_importance_exponent: Free[Probability] = Field(1.0, description="Importance exponent at max_global_step.")
    priority_offset: Free[float] = Field(
        1e-6,
        gt=0,
        description="Added to |error|; not given in the papers.",
    )
    demonstration_priority: Free[float] = Field(
        0.0,
        ge=0,
        le=MAX_DEMONSTRATION_PRIORITY,
        description="Least priority of transitions whose action the client chose, as in takeovers and recorded "
        "episodes; 0: as others. Hester et al. 2018 (DQfD) add 1 to theirs.",
    )
    actor_interval: Free[int] = Field(
        100,
        ge=1,
        description="Steps after which an agent without a learner reports steps and pulls parameters.",
    )

    @model_validator(mode="after")
    def _check_learning_starts(self) -> ReplayConfig:
        if self.learning_starts > self.replay_capacity:
            raise ValueError(
                f"learning_starts is {self.learning_starts} and exceeds replay_capacity, {self.replay_capacity}, so "
                "that learning would never start; decrease learning_starts or increase replay_capacity"
            )
        return self

    @model_validator(mode="after")
    def _check_removal(self) -> ReplayConfig:
        if self.removal != "oldest" and not self.prioritized:
            raise ValueError(
                f"removal is {self.removal}, which needs priorities, and prioritized is false; set prioritized to "
                "true, or removal to oldest"
            )
        return self

    @model_validator(mode="after")
    def _check_demonstrations(self) -> ReplayConfig:
        if self.demonstration_priority and not self.prioritized:
            raise ValueError(
                f"demonstration_priority is {self.demonstration_priority}, and prioritized is false: set prioritized "
                "to true, or demonstration_priority to 0"
            )
        return self

    @property
    def marks_demonstrations(self) -> bool:
        """Whether the memory has the field `DEMONSTRATION`, which is true if the client chose the action."""
        return self.demonstration_priority > 0

    @property
    def bundled(self) -> bool:
        """Whether each worker runs a learner, with its own memory."""
        return False

    @property
    def actors_set_priorities(self) -> bool:
        """Whether actors insert transitions with priorities; if not, new transitions have the largest priority."""
        return False

    @property
    def insert_size(self) -> int:
        """Number of transitions in one insertion."""
        return INSERT_SIZE

    @property
    def error_buffer(self) -> float | None:
        """Number of samples by which actors and learners may run ahead of each other (see `TableDeclaration`)."""
        return None

    def layout(self, observation_space: Space) -> ObservationLayout:
        """Return the stored form of observations."""
        observation_space = without_mask(self.action_mask, observation_space)
        return ObservationLayout(observation_space, self.history_len, image_part(self.network, observation_space))

    def action_field(self, action_space: Space) -> TableField:
        """Return the table's field for actions."""
        return DISCRETE_ACTION


class BundledConfig(ReplayConfig):
    """The key that decides where learners run."""

    learner: Fixed[Literal["bundled", "separate"]] = Field(
        "bundled",
        description="bundled: each worker learns from its own memory. separate: relaax-learner processes "
        "learn from one shared memory.",
    )

    @model_validator(mode="after")
    def _check_samples_per_insert(self) -> BundledConfig:
        if self.bundled and self.samples_per_insert is None:
            raise ValueError(
                "samples_per_insert is null, and a bundled learner needs a number of samples per transition; give a "
                "number, or set learner to separate"
            )
        return self

    @property
    def bundled(self) -> bool:
        return self.learner == "bundled"


class Replay(ReplayBase):
    """Transitions, sampled uniformly or by priority, and evicted by age or priority."""

    def table(self) -> TableDeclaration:
        config: ReplayConfig = self.config
        layout = config.layout(self.observation_space)
        exponent = config.priority_exponent if config.prioritized else None
        masks = mask_size(config.action_mask, self.observation_space, self.action_space)
        action = config.action_field(self.action_space)
        remover = _REMOVERS[config.removal]
        return TableDeclaration(
            transition_table(
                layout,
                config.replay_capacity,
                exponent,
                remover,
                masks,
                action,
                config.removal_exponent,
                config.marks_demonstrations,
                config.demonstration_priority,
            ),
            samples_per_insert=config.samples_per_insert,
            min_size=config.learning_starts,
            error_buffer=config.error_buffer,
            inserts_wait=config.actors_wait,
        )

    @classmethod
    def bundled(cls, config: ReplayConfig) -> bool:
        return config.bundled
