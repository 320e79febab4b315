"""The agent: acts, gathers rollouts, pushes gradients."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentBase, AgentContext, Discrete, Leaves, Space, Step
from relaax.algorithm_base.observations import ObservationEncoder

from .config import Config
from .model import STATISTICS, Model
from .network import actor_critic, clipping, refusal
from .rollout import Rollout

EXPLOIT_PULL_SECONDS = 1.0


class Agent(AgentBase):
    """One actor-learner of Mnih et al. 2016, Algorithm S3, over N environments at once."""

    def __init__(self, config: Config, context: AgentContext) -> None:
        super().__init__(config, context)
        assert isinstance(context.action_space, Discrete)  # refused before otherwise
        spec = actor_critic(config, context.observation_space, context.action_space)
        self._first_action = context.action_space.start
        self._encoder = ObservationEncoder(context.observation_space, context.environments, config.history_len)
        self._model = Model(spec, config, context.environments, self._encoder.dtype)
        self._clip = clipping(config, context.observation_space)
        self._rng = np.random.default_rng([context.seed, *context.actors])
        self._rollout = Rollout(config.episode_len, context.environments, self._encoder.shape, self._encoder.dtype)
        self._inputs: npt.NDArray[Any] = np.zeros(0)
        self._pull()

    @classmethod
    def refusal(cls, config: Config, observation_space: Space, action_space: Space) -> str | None:
        return refusal(config, observation_space, action_space)

    def reset(self, observations: Leaves) -> Leaves:
        self._rollout.steps = 0
        self._inputs = self._encoder.reset(observations)
        return self._act()

    def step(self, step: Step) -> Leaves:
        if self.context.exploit:
            self._inputs = self._encoder.push(step.observations, step.ended | step.first)
            if time.monotonic() - self._pulled_at > EXPLOIT_PULL_SECONDS:
                self._pull()
            return self._act()
        self._rollout.outcome(step, self.config.rewards_gamma, self._clip, self._final_values(step))
        self._inputs = self._encoder.push(step.observations, step.ended | step.first)
        if self._rollout.full:
            self._update()
        return self._act()

    def _final_values(self, step: Step) -> npt.NDArray[np.float32] | None:
        """Values of the final observations, with the history of the episodes that they ended."""
        if step.final_observations is None or not step.truncated.any():
            return None
        return self._model.act(self._encoder.peek(step.final_observations))[1]

    def _act(self) -> Leaves:
        logits, _ = self._model.act(self._inputs)
        if self.context.exploit and self.config.greedy_exploit:
            actions = logits.argmax(axis=1)
        else:  # the largest of logits + Gumbel noise is a sample of the softmax
            actions = (logits + self._rng.gumbel(size=logits.shape)).argmax(axis=1)
        if not self.context.exploit:
            self._rollout.act(self._inputs, actions.astype(np.int32))
        return [actions + self._first_action]

    def _update(self) -> None:
        rollout, bridge = self._rollout, self.context.bridge
        _, bootstrap_value = self._model.act(self._inputs)
        returns = rollout.returns(bootstrap_value)
        gradient, statistics = self._model.gradient(
            rollout.inputs.reshape(-1, *self._encoder.shape),
            rollout.actions.reshape(-1),
            returns.reshape(-1),
            rollout.mask.reshape(-1),
        )
        for name, value in zip(STATISTICS, statistics.tolist(), strict=True):
            bridge.scalar(name, value)
        pushed = bridge.push(gradient, rollout.env_steps)
        if pushed.pulled is not None:
            self._model.set_parameters(pushed.pulled.parameters)
        rollout.steps = 0

    def _pull(self) -> None:
        self._model.set_parameters(self.context.bridge.pull().parameters)
        self._pulled_at = time.monotonic()
