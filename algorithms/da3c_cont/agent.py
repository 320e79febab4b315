"""The agent of da3c_cont: real numbers as actions."""

from __future__ import annotations

import logging
from typing import Any

import numpy.typing as npt

from relaax.algorithm_base import AgentContext, Leaves, Space
from relaax.algorithm_base.policy_graph import ScaledOutput
from relaax.algorithm_base.rollout import Experience

from ..da3c.actor_critic import ActorCritic
from ..da3c.network import actor_critic_refusal
from .actions import ActionMap, action_refusal, gaussian
from .config import Config
from .episodes import Episodes

_log = logging.getLogger(__name__)


class Agent(ActorCritic):
    """An actor-critic whose policy is Gaussian."""

    def __init__(self, config: Config, context: AgentContext) -> None:
        self._map = ActionMap(context.action_space)
        if sentence := self._map.unused_bounds():
            _log.warning("%s", sentence)
        super().__init__(config, context, gaussian(config, context.action_space))

    @classmethod
    def refusal(cls, config: Config, observation_space: Space, action_space: Space) -> str | None:
        sentence = action_refusal(action_space)
        if sentence:
            return f"da3c_cont cannot handle the action space {action_space}; {sentence}"
        return actor_critic_refusal("da3c_cont", config, observation_space, gaussian(config, action_space))

    def _greedy(self) -> ScaledOutput:
        return self._map.of_output("mean")

    def _leaves(self, actions: npt.NDArray[Any]) -> Leaves:
        return self._map(actions)

    def _experience_of(self) -> Experience:
        if not self.config.whole_episodes:
            return super()._experience_of()
        environments = self.context.environments
        return Episodes(self.config.longest_episode, environments, self._spec, self._input_dtype, self._policy)
