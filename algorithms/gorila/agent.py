"""The actor of gorila (Nair et al. 2015) and of apex (Horgan et al. 2018)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentContext, Discrete, Leaves, Mask, Pulled, Space
from relaax.algorithm_base.acting.exploration import epsilon_greedy
from relaax.algorithm_base.acting.policy_graph import LargestOutput, PolicyGraph
from relaax.algorithm_base.values import greedy_values, values_of

from .._replay.agent import ReplayAgent
from .._value_based.model import action_values, value_network, value_refusal
from .learner import Learner
from .model import DeepQConfig

Array = npt.NDArray[np.float32]


class Agent(ReplayAgent):
    """An actor that acts epsilon-greedily."""

    def __init__(self, config: DeepQConfig, context: AgentContext) -> None:
        assert isinstance(context.action_space, Discrete)  # `refusal` has refused other spaces
        self._first_action = context.action_space.start
        self._q = action_values(config, context.action_space)
        self._newest: Array = np.zeros(0, np.float32)  # values of the newest inputs, float32 [N, A]
        super().__init__(config, context, value_network(config, context.observation_space, self._q), Learner)
        self._use(self._exchange.pull())

    @classmethod
    def refusal(cls, config: DeepQConfig, observation_space: Space, action_space: Space) -> str | None:
        return value_refusal(config, observation_space, action_space)

    def policy_graph(self) -> PolicyGraph:
        head = "advantage" if self.config.dueling else "q"  # the state's value does not change the order of the actions
        parameters = self.context.parameters.pull().parameters
        return self._inputs.policy_graph(parameters, tuple(self._q.heads), (LargestOutput(head, self._first_action),))

    def _act(self) -> Leaves:
        inputs, config = self._inputs, self.config
        values = self._newest = self._values(inputs.newest)
        if self.context.exploit:
            epsilon = 0.0 if config.greedy_exploit else config.exploit_epsilon
            actions = epsilon_greedy(values, epsilon, self._rng, inputs.valid)
        else:
            actions = epsilon_greedy(values, self._exploration(), self._rng, inputs.valid)
            both = None
            if config.actors_set_priorities:
                both = values_of(values, actions), greedy_values(values, valid=inputs.valid)
            self._transitions.act(inputs.unnormalized, inputs.restart, actions, both, inputs.valid, inputs.held)
        return [actions + self._first_action]

    def _replace_actions(self, chosen: Mask, actions: Leaves) -> None:
        taken = np.where(chosen, actions[0] - self._first_action, 0)
        self._transitions.replace_actions(chosen, taken, values_of(self._newest, taken))

    def _values(self, inputs: npt.NDArray[Any]) -> Array:
        return self._q.values(self._actor.act(inputs, self._inputs.state)[0])

    def _best_values(self, inputs: npt.NDArray[Any], valid: Mask | None) -> Array:
        return greedy_values(self._values(inputs), valid=valid)

    def _exploration(self) -> npt.NDArray[np.float64]:
        """Return the probability of a random action, float64 [N] or one number for all environments."""
        pulled = self._pulled
        ranks = range(pulled.actor_rank, pulled.actor_rank + self.context.environments)
        exploration: npt.NDArray[np.float64] = self.config.exploration(pulled.frames, ranks, pulled.actor_count)
        return exploration

    def _record_exploration(self) -> None:
        self.context.metrics.scalar("epsilon", float(np.mean(self._exploration())))

    def _use(self, pulled: Pulled) -> None:
        super()._use(pulled)
        self._actor.set_parameters(pulled.parameters, self._inputs.mean_image)
