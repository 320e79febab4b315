"""The keys of value methods, the value network that they describe, and their model for the parameter server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from relaax.algorithm_base import (
    Discrete,
    Fixed,
    Free,
    MultiBinary,
    MultiDiscrete,
    ParameterServerBase,
    Space,
    TargetInterval,
)
from relaax.algorithm_base.network import AgentConfig, agent_network, agent_statistics, observation_refusal
from relaax.algorithm_base.values import Errors
from relaax.nn.action_values import ActionValues
from relaax.nn.initialization import orthogonal_parameters
from relaax.nn.specification import NetworkSpec

Probability = Annotated[float, Field(ge=0, le=1)]
HEAD_GAIN = 0.01
"""So small that all actions begin with nearly the same value, about 0."""


class ActionValueConfig(AgentConfig):
    """The keys of everyone who acts by action values."""

    name: ClassVar[str]
    """Of the algorithm, in sentences."""

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
    """The keys of async_q, async_sarsa and n_step_q."""

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

    @property
    def target_renewal(self) -> TargetInterval:
        """How often the target network is renewed."""
        return TargetInterval(frames=self.target_interval)


def value_network(config: ActionValueConfig, observation_space: Space, values: ActionValues) -> NetworkSpec:
    """Specify a network whose heads are those of `values`."""
    return agent_network(config, observation_space, values.heads, _groups(values), config.dueling)


def action_values(config: ActionValueConfig, action_space: Space) -> ActionValues:
    """Return what the network's heads mean. The space is `Discrete`: any other was refused before."""
    assert isinstance(action_space, Discrete)
    return ActionValues(action_space.n, config.dueling)


def value_refusal(config: ActionValueConfig, observation_space: Space, action_space: Space) -> str | None:
    """Return why the algorithm cannot handle the spaces; None if it can."""
    if not isinstance(action_space, Discrete):
        several = isinstance(action_space, MultiDiscrete | MultiBinary)
        return (
            f"{config.name} cannot handle the action space {action_space}: it handles one Discrete, of which the "
            "network estimates a value for each action"
            + ("; da3c handles MultiDiscrete and MultiBinary" if several else "")
        )
    values = action_values(config, action_space)
    return observation_refusal(config.name, config, observation_space, values.heads, _groups(values), config.dueling)


def _groups(values: ActionValues) -> tuple[tuple[str, ...], ...]:
    return tuple((head,) for head in values.heads)


class ParameterServer(ParameterServerBase):
    """One value network, its target network, and a shared optimizer."""

    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        """Return orthogonal kernels, those of the heads small."""
        values = action_values(self.config, self.action_space)
        spec = value_network(self.config, self.observation_space, values)
        return orthogonal_parameters(spec, seed, dict.fromkeys(values.heads, HEAD_GAIN))

    def statistics(self) -> Mapping[str, int]:
        return agent_statistics(self.config, self.observation_space)

    def target_interval(self) -> TargetInterval:
        interval: TargetInterval = self.config.target_renewal
        return interval
