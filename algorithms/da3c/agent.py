"""The agent of da3c: one of a few actions at a time."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from relaax.algorithm_base import AgentContext, Discrete, LargestOutput, Leaves, Space
from relaax.nn.distributions import Categorical

from .actor_critic import ActorCritic
from .config import Config
from .network import actor_critic_refusal


class Agent(ActorCritic):
    """An actor-critic whose policy is a softmax."""

    def __init__(self, config: Config, context: AgentContext) -> None:
        assert isinstance(context.action_space, Discrete)  # refused before otherwise
        self._first_action = context.action_space.start
        super().__init__(config, context, Categorical(context.action_space.n))

    @classmethod
    def refusal(cls, config: Config, observation_space: Space, action_space: Space) -> str | None:
        if not isinstance(action_space, Discrete):
            return f"da3c cannot handle the action space {action_space}; it handles Discrete"
        return actor_critic_refusal("da3c", config, observation_space, Categorical(action_space.n))

    def _greedy(self) -> LargestOutput:
        return LargestOutput("policy", self._first_action)

    def _leaves(self, actions: npt.NDArray[Any]) -> Leaves:
        return [actions + self._first_action]  # int64 already, as they are sampled
