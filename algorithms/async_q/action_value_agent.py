"""An agent that acts by action values, however it learns them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentContext, Discrete, Pulled, Space
from relaax.algorithm_base.exploration import epsilon_greedy
from relaax.algorithm_base.network_agent import NetworkAgent
from relaax.algorithm_base.policy_graph import LargestOutput

from .config import ActionValueConfig
from .network import action_values, refusal, value_network

Array = npt.NDArray[np.float32]
Inputs = npt.NDArray[Any]


class ActionValueAgent(NetworkAgent):
    """Acts epsilon-greedily. A subclass says how much it explores (`_exploration`), and what NetworkAgent asks for."""

    name: str
    """Of the algorithm, in sentences."""

    def __init__(self, config: ActionValueConfig, context: AgentContext) -> None:
        assert isinstance(context.action_space, Discrete)  # refused before otherwise
        self._first_action = context.action_space.start
        self._q = action_values(config, context.action_space)
        super().__init__(config, context, value_network(config, context.observation_space, self._q))

    @classmethod
    def refusal(cls, config: ActionValueConfig, observation_space: Space, action_space: Space) -> str | None:
        return refusal(cls.name, config, observation_space, action_space)

    @abstractmethod
    def _exploration(self) -> npt.NDArray[np.float64]:
        """Return the share of random actions of each environment, float64 [N] or one number for all."""

    def _policy_outputs(self) -> tuple[tuple[str, ...], LargestOutput]:
        head = "advantage" if self.config.dueling else "q"  # the state's value moves no action before another
        return tuple(self._q.heads), LargestOutput(head, self._first_action)

    @property
    def _ranks(self) -> range:
        """Ranks of the environments among all actors that train."""
        return range(self._pulled.actor_rank, self._pulled.actor_rank + self.context.environments)

    def _take(self, pulled: Pulled) -> None:
        super()._take(pulled)
        self._pulled = pulled

    def _online_values(self, inputs: Inputs, state: Array) -> Array:
        """Return the online network's values, float32 [N, A], of inputs [N, ...]."""
        return self._q.values(self._actor.act(inputs, state)[0])

    def _chosen(self, values: Array) -> npt.NDArray[np.int64]:
        """Return the actions that the policy takes by these values, int64 [N], from 0."""
        if not self.context.exploit:
            return epsilon_greedy(values, self._exploration(), self._rng)
        return epsilon_greedy(values, 0.0 if self.config.greedy_exploit else self.config.exploit_epsilon, self._rng)


def no_state(count: int) -> Array:
    """Return what a network without an LSTM remembers of so many inputs."""
    return np.zeros((count, 0), np.float32)
