"""Keys, networks and initial parameters of the algorithms with a policy and critics of real actions."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat, PositiveInt

from relaax.algorithm_base import Box, Fixed, Free, ParameterServerBase, Space, TargetInterval
from relaax.algorithm_base.acting.actions import LARGEST_BOUND
from relaax.algorithm_base.config import AdamConfig, space_size
from relaax.algorithm_base.network import (
    SIDE_INPUT_WIDTH,
    agent_network,
    agent_statistics,
    observation_refusal,
)
from relaax.algorithm_base.transitions import LARGEST_INSERT
from relaax.algorithm_base.transitions import Field as TableField
from relaax.nn.initialization import orthogonal_parameters
from relaax.nn.specification import JoinedLayout, NetworkSpec

from .._replay.model import ReplayConfig

Array = npt.NDArray[np.float32]

POLICY, CRITIC = "policy", "critic"
MEAN = "mean"
"""The policy's head whose tanh is the greedy action."""
HEAD_GAIN = 0.01
"""Gain of the heads' initial kernels: small, so that the first actions and values are near 0."""
STEPS_AHEAD = 2 * LARGEST_INSERT
"""Steps by which actors and learners may run ahead of each other. With few steps, each of them counts."""
LARGEST_BATCH = 1_000


class UnclippedAdamConfig(AdamConfig):
    """Adam (Kingma and Ba 2015, the form at the end of section 2). All learners share its moments."""

    gradient_norm_clipping: float | None = Field(None, gt=0, description="Maximum norm of a gradient; null: no limit.")


class ContinuousConfig(ReplayConfig):
    """The keys that sac and apex_dpg share."""

    optimizer: Fixed[Literal["rms_prop", "adam", "momentum", "adagrad", "worker_rms_prop", "worker_momentum"]] = Field(
        "adam", description="Optimizer; with worker_, each learner has its own statistics."
    )
    adam: Free[UnclippedAdamConfig] = Field(UnclippedAdamConfig(), alias="Adam", description="Adam.")
    reward_clipping: Fixed[PositiveFloat | Literal["auto"] | None] = Field(
        None, description="Bound of normalised rewards for learning, plus and minus."
    )
    normalize_rewards: Fixed[Literal["auto", "scale", "standardize"] | None] = Field(
        None,
        description="Normalise rewards for learning. scale: divide by the discounted return's standard "
        "deviation. standardize: (r - mean) / std. auto: scale, or null for images.",
    )
    critic_dense: Fixed[list[PositiveInt] | None] = Field(
        None, description="Widths of the critic's dense layers; null: the policy's, network.dense."
    )
    critic_learning_rate: Free[PositiveFloat | None] = Field(
        None, description="Learning rate of the critic at global step 0; null: initial_learning_rate."
    )
    random_steps: Free[int] = Field(
        1_000, ge=0, description="Environment steps of all workers with uniformly random actions at the start."
    )
    greedy_exploit: Free[bool] = Field(
        True, description="In exploit mode, take the policy's mean action; false: explore as in training."
    )

    @property
    def insert_size(self) -> int:
        return 10  # so that learners of a slow environment soon have the newest steps

    @property
    def error_buffer(self) -> float | None:
        if self.samples_per_insert is None:
            return None
        return max(STEPS_AHEAD * self.samples_per_insert, LARGEST_BATCH)

    @property
    @abstractmethod
    def target_renewal(self) -> TargetInterval:
        """How the target networks follow the networks."""

    @property
    @abstractmethod
    def critics(self) -> tuple[str, ...]:
        """The names of the critic's heads. Each has a network of its own."""

    @abstractmethod
    def policy_heads(self, actions: int) -> Mapping[str, int]:
        """Return names and widths of the policy's heads for actions of this many numbers."""

    def action_field(self, action_space: Space) -> TableField:
        return TableField("float32", (space_size(action_space),))


class Networks:
    """The specifications of policy and critic, and their positions in the flat vector.

    The critic's inputs are the numbers of an observation followed by the action's, from -1 to 1. With images, the
    action and the other numbers have a layer of their own (see `NetworkSpec.image`).
    """

    def __init__(self, config: ContinuousConfig, observation_space: Space, action_space: Space) -> None:
        self.actions = space_size(action_space)
        self.policy = agent_network(config, observation_space, config.policy_heads(self.actions), ())
        self.critic = critic_network(config, self.policy, self.actions)
        self.parts: Mapping[str, NetworkSpec | int] = {POLICY: self.policy, CRITIC: self.critic}

    def layout(self, further: Mapping[str, int]) -> JoinedLayout:
        """Return the positions in the vector. `further`: numbers after the networks, by name."""
        return JoinedLayout({**self.parts, **further})


def critic_network(config: ContinuousConfig, policy: NetworkSpec, actions: int) -> NetworkSpec:
    """Return the network from observation and action to the value of each critic."""
    heads = config.critics
    return replace(
        policy,
        inputs=(math.prod(policy.inputs) + actions,),
        heads=dict.fromkeys(heads, 1),
        groups=tuple((head,) for head in heads),
        dense=policy.dense if config.critic_dense is None else tuple(config.critic_dense),
        image=policy.convolved if policy.convolutions else (),
        side_width=SIDE_INPUT_WIDTH if policy.convolutions else 0,
    )


def continuous_refusal(config: ContinuousConfig, observation_space: Space, action_space: Space) -> str | None:
    """Return why the algorithm cannot handle the spaces; None if it can."""
    for path, element in zip(action_space.paths(), action_space.elements(), strict=True):
        part = f" (at action{path})" if path else ""
        start = f"{config.name} cannot handle the action space {action_space}: "
        if not isinstance(element, Box) or element.dtype.kind != "f":
            return f"{start}it handles Boxes of real numbers, not {element}{part}; ppo and da3c handle other actions"
        if not (np.maximum(np.abs(element.low), np.abs(element.high)) < LARGEST_BOUND).all():
            return (
                f"{start}it needs bounds below {LARGEST_BOUND:,.0f} for each number, as it learns actions between "
                f"them{part}; give the Box finite bounds, for instance with gymnasium.wrappers.RescaleAction"
            )
    heads = config.policy_heads(space_size(action_space))
    return observation_refusal(config.name, config, (observation_space, action_space), heads, ())


class ContinuousParameterServer(ParameterServerBase):
    """A policy and critics in one vector, their target networks, and a shared optimizer."""

    def initial_parameters(self, seed: int) -> Array:
        """Return orthogonal kernels, scaled by `HEAD_GAIN` in the heads, and the numbers after the networks."""
        networks = Networks(self.config, self.observation_space, self.action_space)
        parts = [
            orthogonal_parameters(spec, seed + place, dict.fromkeys(spec.heads, HEAD_GAIN))
            for place, spec in enumerate((networks.policy, networks.critic))
        ]
        return np.concatenate([*parts, self.initial_numbers()])

    def layout(self) -> Mapping[str, tuple[int, ...]]:
        networks = Networks(self.config, self.observation_space, self.action_space)
        named = ((POLICY, networks.policy), (CRITIC, networks.critic))
        shapes = {f"{name}/{array}": shape for name, spec in named for array, shape in spec.layout().shapes.items()}
        return shapes | {"numbers": (len(self.initial_numbers()),)}

    def learning_rates(self) -> Sequence[tuple[int, float]]:
        rates = {CRITIC: self.config.critic_learning_rate, **self.rates_of_numbers()}
        if not any(rates.values()):
            return ()
        networks = Networks(self.config, self.observation_space, self.action_space)
        places = networks.layout(dict.fromkeys(self.rates_of_numbers(), 1)).slices
        initial = self.config.initial_learning_rate
        return [(place.stop - place.start, (rates.get(name) or initial) / initial) for name, place in places.items()]

    def rates_of_numbers(self) -> dict[str, float | None]:
        """Return the learning rates of the numbers after the networks, by name; None for `initial_learning_rate`."""
        return {}

    def initial_numbers(self) -> Array:
        """Return the initial numbers after the networks, float32."""
        return np.zeros(0, np.float32)

    def statistics(self) -> Mapping[str, int]:
        return agent_statistics(self.config, self.observation_space)

    def target_interval(self) -> TargetInterval:
        interval: TargetInterval = self.config.target_renewal
        return interval


def joined_inputs(inputs: npt.NDArray[Any], actions: Array) -> Array:
    """Return the critic's inputs, float32 [B, features]. `inputs`: the policy's, [B, ...]. `actions`: [B, A]."""
    flat = inputs.reshape(len(inputs), -1)
    joined = np.empty((len(flat), flat.shape[1] + actions.shape[1]), np.float32)
    numbers = joined[:, : flat.shape[1]]
    if flat.dtype == np.uint8:
        np.multiply(flat, np.float32(1 / 255), out=numbers)
    else:
        numbers[...] = flat
    joined[:, flat.shape[1] :] = actions
    return joined
