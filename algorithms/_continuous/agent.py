"""The actor of the algorithms with real actions."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentContext, Leaves, Mask, Pulled, Space
from relaax.algorithm_base.acting.actions import ActionMap
from relaax.algorithm_base.acting.policy_graph import PolicyGraph, ScaledOutput
from relaax.nn.engine import Actor, Outputs, make_actor

from .._replay.agent import MakeLearner, ReplayAgent
from .model import CRITIC, MEAN, POLICY, ContinuousConfig, Networks, continuous_refusal, joined_inputs

Array = npt.NDArray[np.float32]


class ContinuousAgent(ReplayAgent):
    """An actor with real actions, from -1 to 1 in the memory. A subclass explores."""

    def __init__(self, config: ContinuousConfig, context: AgentContext, make_learner: MakeLearner) -> None:
        networks = Networks(config, context.observation_space, context.action_space)
        places = networks.layout({}).slices
        self._policy_place, self._critic_place = places[POLICY], places[CRITIC]
        self._action_map = ActionMap(context.action_space)
        # The critic's inputs are an image and an action in one vector, so its network cannot subtract the mean image.
        first = self._policy_place.start
        super().__init__(config, context, networks.policy, make_learner, first, mean_in_network=False)
        self._critic: Actor | None = None
        if config.actors_set_priorities and not context.exploit:
            first = self._critic_place.start
            self._critic = make_actor(networks.critic, np.float32, compiled=True, first=first)
        self._actions: Array = np.zeros((context.environments, networks.actions), np.float32)
        self._use(self._exchange.pull())

    @classmethod
    def refusal(cls, config: ContinuousConfig, observation_space: Space, action_space: Space) -> str | None:
        return continuous_refusal(config, observation_space, action_space)

    @abstractmethod
    def _explore(self, outputs: Outputs) -> Array:
        """Return the actions to train with, float32 [N, A] from -1 to 1. `outputs`: the policy's."""

    def policy_graph(self) -> PolicyGraph:
        parameters = self.context.parameters.pull().parameters[self._policy_place]
        rules = self._action_map.greedy()
        scaled = tuple(replace(rule, squashed=True) for rule in rules if isinstance(rule, ScaledOutput))
        return self._inputs.policy_graph(parameters, (MEAN,), scaled)

    def _act(self) -> Leaves:
        inputs, exploit = self._inputs, self.context.exploit
        outputs, _ = self._actor.act(inputs.newest, inputs.state)
        if exploit and self.config.greedy_exploit:
            actions = np.tanh(outputs[MEAN])
        elif exploit or self._exchange.global_step >= self.config.random_steps:
            actions = self._explore(outputs)
        else:
            actions = self._rng.uniform(-1, 1, self._actions.shape).astype(np.float32)
        self._actions = inputs.keep_held(self._actions, actions)
        if not exploit:
            values = None
            if self._critic:
                taken, best = (self._values(inputs.newest, each) for each in (self._actions, np.tanh(outputs[MEAN])))
                values = taken, best
            self._transitions.act(inputs.unnormalized, inputs.restart, self._actions, values, None, inputs.held)
        return self._action_map(self._actions, inputs.unwanted)

    def _replace_actions(self, chosen: Mask, actions: Leaves) -> None:
        taken = np.clip(self._action_map.actions_of(actions), -1, 1)
        taken = np.where(chosen[:, None], taken, self._actions)
        values = self._values(self._inputs.newest, taken) if self._critic else None
        self._transitions.replace_actions(chosen, taken, values)

    def _best_values(self, inputs: npt.NDArray[Any], valid: Mask | None) -> Array:
        outputs, _ = self._actor.act(inputs, self._inputs.state)
        return self._values(inputs, np.tanh(outputs[MEAN]))

    def _values(self, inputs: npt.NDArray[Any], actions: Array) -> Array:
        """Return the least value of the critics, float32 [N]."""
        assert self._critic is not None
        outputs, _ = self._critic.act(joined_inputs(inputs, actions), np.zeros((len(inputs), 0), np.float32))
        least: Array = np.min([outputs[head][:, 0] for head in self.config.critics], axis=0)
        return least

    def _use(self, pulled: Pulled) -> None:
        super()._use(pulled)
        self._actor.set_parameters(pulled.parameters[self._policy_place])
        if self._critic:
            self._critic.set_parameters(pulled.parameters[self._critic_place])
