"""The agent of da3c: one of a few actions at a time, or several choices or bits."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from relaax.algorithm_base import AgentContext, Leaves, Space
from relaax.algorithm_base.policy_graph import GreedyAction

from .actions import action_refusal, greedy_action, leaves_of, policy_of
from .actor_critic import ActorCritic
from .config import Config
from .network import actor_critic_refusal


class Agent(ActorCritic):
    """An actor-critic whose policy is a softmax, several of them, or a probability of each bit."""

    def __init__(self, config: Config, context: AgentContext) -> None:
        super().__init__(config, context, policy_of(context.action_space))

    @classmethod
    def refusal(cls, config: Config, observation_space: Space, action_space: Space) -> str | None:
        sentence = action_refusal(action_space)
        if sentence:
            return f"da3c cannot handle the action space {action_space}; {sentence}"
        return actor_critic_refusal("da3c", config, observation_space, policy_of(action_space))

    def _greedy(self) -> GreedyAction:
        return greedy_action(self.context.action_space)

    def _leaves(self, actions: npt.NDArray[Any]) -> Leaves:
        return leaves_of(self.context.action_space, actions)
