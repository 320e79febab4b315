"""The keys of the value methods, their value network, and their model for the parameter server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from relaax.algorithm_base import (
    Discrete,
    Fixed,
    Free,
    ParameterServerBase,
    Space,
    TargetInterval,
)
from relaax.algorithm_base.acting.actions import actions_refusal
from relaax.algorithm_base.config import Probability
from relaax.algorithm_base.network import AgentConfig, agent_network, agent_statistics, observation_refusal
from relaax.algorithm_base.values import Errors
from relaax.nn.action_values import ActionValues
from relaax.nn.initialization import orthogonal_parameters
from relaax.nn.specification import NetworkSpec

HEAD_GAIN = 0.01
"""Gain of the heads' initial kernels: small, so that at first all actions have nearly the same value, about 0."""


class ActionValueConfig(AgentConfig):
    """The keys of all methods that act by action values."""

    name: ClassVar[str]
    """Name of the algorithm in messages."""

    dueling: Fixed[bool] = Field(
        False,
        description="Estimate a state's value and its actions' advantages.",
    )
    errors: Free[Errors] = Field("squared", description="Loss of a value's error; squared in the paper.")
    held_out_states: Free[int] = Field(
        64,
        ge=0,
        le=1_000,
        description="States that each connection keeps for the metric `q/held_out`.",
    )
    greedy_exploit: Free[bool] = Field(
        True,
        description="In exploit mode, take only best actions; false: use `exploit_epsilon`.",
    )
    exploit_epsilon: Free[Probability] = Field(
        0.05, description="Share of random actions in exploit mode, as in Mnih et al. 2015."
    )


class ValueConfig(ActionValueConfig):
    """The keys of async_q, async_sarsa and n_step_q."""

    initial_learning_rate: Free[float] = Field(1e-3, gt=0, description="Learning rate at global step 0.")
    update_interval: Free[int] = Field(
        5, ge=1, description="Steps that each gradient covers, I_AsyncUpdate of the paper."
    )
    target_interval: Free[int] = Field(
        40_000,
        ge=1,
        description="Frames of all workers between refreshes of the target network, I_target of the paper.",
    )
    initial_epsilon: Free[Probability] = Field(1.0, description="Initial share of random actions.")
    final_epsilons: Free[list[Probability]] = Field(
        [0.1, 0.01, 0.5], min_length=1, description="Final shares of random actions; each actor draws one."
    )
    final_epsilon_probabilities: Free[list[Probability]] = Field(
        [0.4, 0.3, 0.3], min_length=1, description="Probability of each element of `final_epsilons`."
    )
    exploration_frames: Free[int] = Field(
        4_000_000, ge=0, description="Frames in which epsilon falls to its final value."
    )

    @model_validator(mode="after")
    def _check_final_epsilons(self) -> ValueConfig:
        epsilons, probabilities = len(self.final_epsilons), self.final_epsilon_probabilities
        if epsilons != len(probabilities):
            raise ValueError(
                f"final_epsilons has {epsilons} numbers and final_epsilon_probabilities {len(probabilities)}; give "
                "one probability for each epsilon"
            )
        if sum(probabilities) <= 0:
            raise ValueError("final_epsilon_probabilities are all 0; at least one must be above 0")
        return self

    @property
    def target_renewal(self) -> TargetInterval:
        """Interval between two refreshes of the target network."""
        return TargetInterval(frames=self.target_interval)


def value_network(config: ActionValueConfig, observation_space: Space, values: ActionValues) -> NetworkSpec:
    """Specify the network with the heads that `values` needs."""
    return agent_network(config, observation_space, values.heads, _groups(values), config.dueling)


def action_values(config: ActionValueConfig, action_space: Space) -> ActionValues:
    """Return how the network's heads give action values. The space is a Discrete."""
    assert isinstance(action_space, Discrete)
    return ActionValues(action_space.n, config.dueling)


def value_refusal(config: ActionValueConfig, observation_space: Space, action_space: Space) -> str | None:
    """Return why the algorithm cannot handle the spaces; None if it can."""
    if not isinstance(action_space, Discrete):
        return (
            f"{config.name} cannot handle the action space {action_space}: it handles one Discrete; the network "
            "estimates a value for each of its actions"
            + ("" if actions_refusal(action_space, {}) else "; da3c handles these actions")
        )
    values = action_values(config, action_space)
    return observation_refusal(
        config.name, config, (observation_space, action_space), values.heads, _groups(values), config.dueling
    )


def _groups(values: ActionValues) -> tuple[tuple[str, ...], ...]:
    return tuple((head,) for head in values.heads)


class ParameterServer(ParameterServerBase):
    """One value network, its target network, and a shared optimizer."""

    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        """Return orthogonal kernels, scaled by `HEAD_GAIN` in the heads."""
        values = action_values(self.config, self.action_space)
        spec = value_network(self.config, self.observation_space, values)
        return orthogonal_parameters(spec, seed, dict.fromkeys(values.heads, HEAD_GAIN))

    def layout(self) -> Mapping[str, tuple[int, ...]]:
        values = action_values(self.config, self.action_space)
        return value_network(self.config, self.observation_space, values).layout().shapes

    def statistics(self) -> Mapping[str, int]:
        return agent_statistics(self.config, self.observation_space)

    def target_interval(self) -> TargetInterval:
        interval: TargetInterval = self.config.target_renewal
        return interval
