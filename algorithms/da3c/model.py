"""The keys of da3c's configuration, and its model for the parameter server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from relaax.algorithm_base import Fixed, Free, ParameterServerBase, Space
from relaax.algorithm_base.acting.actions import ActionMap
from relaax.algorithm_base.network import ActorCriticConfig, actor_critic_network, agent_statistics
from relaax.nn.initialization import orthogonal_parameters

HEAD_GAIN = 0.01
"""Gain of the policy's initial kernels: small, so that at first all actions are about equally likely."""


class PolicyConfig(ActorCriticConfig):
    """The keys of an actor-critic with a policy for any actions."""

    name: ClassVar[str]
    """Name of the algorithm in messages."""

    spherical: Fixed[bool] = Field(
        False, description="One variance for all real numbers of an action, as in the paper."
    )
    initial_variance: Free[float] = Field(
        1.0, gt=1e-5, description="Initial variance of real numbers whose bounds are -1 and 1."
    )

    persistence: Free[float] = Field(
        1.0,
        ge=1,
        description="Mean number of steps for which the random numbers that select actions stay the same; more "
        "explores farther.",
    )

    def actions(self, space: Space) -> ActionMap:
        """Return the policy of an action space."""
        return ActionMap(space, spherical=self.spherical, entropy_weights=self.entropy_weights)


class Config(PolicyConfig):
    """Distributed A3C."""

    name = "da3c"

    whole_episodes: Free[bool] = Field(False, description="Compute each update from one environment's whole episode.")
    longest_episode: Free[int] = Field(
        10_000, ge=1, description="Longer episodes are split into parts of this length, with `whole_episodes`."
    )


class ParameterServer(ParameterServerBase):
    """One actor-critic network, a shared optimizer, and the statistics that normalise inputs and rewards."""

    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        """Return orthogonal kernels. The policy's are small; real numbers have `initial_variance`."""
        actions = self.config.actions(self.action_space)
        spec = actor_critic_network(self.config, self.observation_space, actions.policy)
        gains = dict.fromkeys(actions.policy.heads, HEAD_GAIN) | {"value": 1.0}
        return orthogonal_parameters(spec, seed, gains, actions.initial_biases(self.config.initial_variance))

    def layout(self) -> Mapping[str, tuple[int, ...]]:
        policy = self.config.actions(self.action_space).policy
        return actor_critic_network(self.config, self.observation_space, policy).layout().shapes

    def statistics(self) -> Mapping[str, int]:
        return agent_statistics(self.config, self.observation_space)
