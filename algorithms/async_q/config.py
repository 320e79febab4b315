"""The keys of async_q's configuration, and those that others share with it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from relaax.algorithm_base import Fixed, Free
from relaax.algorithm_base.network import AgentConfig
from relaax.algorithm_base.values import Errors

Probability = Annotated[float, Field(ge=0, le=1)]


class ActionValueConfig(AgentConfig):
    """The keys of everyone who acts by action values."""

    dueling: Fixed[bool] = Field(
        False,
        description="The network estimates the value of a state and the advantages of its actions: for images each "
        "has a dense layer of its own, for vectors a network of its own; with an LSTM both have the same layers.",
    )
    errors: Free[Errors] = Field(
        "squared", description="What an error of the value costs: its square, as in the paper, or Huber's loss."
    )
    held_out_states: Free[int] = Field(
        64,
        ge=0,
        le=1_000,
        description="States of its beginning that each connection keeps, whose mean value is `q/held_out`; 0: none.",
    )
    greedy_exploit: Free[bool] = Field(
        True, description="In exploit mode always take the best action; false: a random one with `exploit_epsilon`."
    )
    exploit_epsilon: Free[Probability] = Field(
        0.05, description="Share of random actions in exploit mode if it is not greedy, as Mnih et al. 2015 evaluate."
    )


class ValueConfig(ActionValueConfig):
    """The keys of all three."""

    initial_learning_rate: Free[float] = Field(1e-3, gt=0, description="Learning rate at global step 0.")
    update_interval: Free[int] = Field(
        5, ge=1, description="Steps over which gradients are summed before they are sent, I_AsyncUpdate of the paper."
    )
    target_interval: Free[int] = Field(
        40_000,
        ge=1,
        description="Frames, over all workers, between two refreshes of the target network, I_target of the paper.",
    )
    initial_epsilon: Free[Probability] = Field(1.0, description="Share of random actions at the beginning.")
    final_epsilons: Free[list[Probability]] = Field(
        [0.1, 0.01, 0.5], min_length=1, description="Shares of random actions in the end: each actor draws one of them."
    )
    final_epsilon_probabilities: Free[list[Probability]] = Field(
        [0.4, 0.3, 0.3], min_length=1, description="How probable it is that an actor draws each of them."
    )
    exploration_frames: Free[int] = Field(
        4_000_000, ge=0, description="Frames, over all workers, in which epsilon falls from the first to the last."
    )

    @model_validator(mode="after")
    def _each_epsilon_has_a_probability(self) -> ValueConfig:
        epsilons, probabilities = len(self.final_epsilons), self.final_epsilon_probabilities
        if epsilons != len(probabilities):
            raise ValueError(
                f"final_epsilons has {epsilons} numbers and final_epsilon_probabilities {len(probabilities)}: each "
                "epsilon has one probability"
            )
        if sum(probabilities) <= 0:
            raise ValueError("final_epsilon_probabilities are all 0: at least one is more")
        return self


class DoubleConfig(ValueConfig):
    """The keys of those that choose the best action for a target."""

    double: Free[bool] = Field(
        False, description="The online network says which action is best, the target network what it is worth."
    )


class Config(DoubleConfig):
    """Asynchronous one-step Q-learning."""
