"""What gorila and apex have in common: an agent that fills a replay memory, and may drive a learner."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentContext, LearnerContext, Leaves, Mask, StepResult
from relaax.algorithm_base.learner import record_sample
from relaax.algorithm_base.transitions import Transitions

from ..async_q.action_value_agent import ActionValueAgent, Inputs, no_state
from .config import ReplayConfig
from .learner import Learner
from .replay import observation_layout


class ReplayAgent(ActionValueAgent):
    """One actor over N environments: it acts epsilon-greedily, and puts transitions into replay memory.

    Where each worker learns it drives a learner while the environments step, for as many updates as the memory allows.
    Otherwise it pushes no gradients: every `actor_interval` steps it says how many it has taken, and gets parameters.
    A subclass says how much it explores (`_exploration`).
    """

    def __init__(self, config: ReplayConfig, context: AgentContext) -> None:
        super().__init__(config, context)
        self._transitions = Transitions(
            context.replay.writers if context.replay else [],
            observation_layout(config, context.observation_space),
            steps=config.n_step,
            gamma=config.rewards_gamma,
            priority_offset=config.priority_offset if config.actors_know_priorities else None,
            bounded=self._normalization.bounds_inputs,
            client=context.client,
            metrics=context.metrics,
        )
        bundled = config.bundled and context.replay is not None
        self._learner = Learner(config, LearnerContext.beside(context, context.actors[0])) if bundled else None
        self._updates = math.ceil((config.samples_per_insert or 0) * context.environments / config.batch_size)
        self._seen: Inputs = self._inputs  # as they are before they are normalised
        self._due = False  # what can wait until the actions are on their way
        self._unsaid = 0  # steps since the last push
        self._begin(self._transitions)

    def reset(self, observations: Leaves) -> Leaves:
        self._due, self._unsaid = False, 0
        return super().reset(observations)

    def step(self, step: StepResult) -> Leaves:
        actions = super().step(step)
        self._due, self._unsaid = not self.context.exploit, self._unsaid + 1
        return actions

    def learn(self) -> None:
        """Make the updates that the newest step has paid for, a few at the most; say what nobody else has said."""
        if not self._due:
            return
        self._due = False
        if self._learner:
            self._drive(self._learner)
        if self._unsaid >= self.config.actor_interval:
            self._unsaid = 0
            self._push(None, None)
            self._record_exploration()

    def _drive(self, learner: Learner) -> None:
        assert self.context.replay is not None, "who learns has a memory"
        for _ in range(self._updates):
            sampled = self.context.replay.sample(learner.batch_size, timeout=0.0)
            if sampled is None:
                break
            learner.env_steps, self._env_steps, self._unsaid = self._env_steps, 0, 0
            record_sample(self.context.metrics, sampled)
            learner.step(sampled)
        learner.finish()
        if learner.pulled is not self._pulled:
            self._take(learner.pulled)
            self._record_exploration()

    def _record_exploration(self) -> None:
        self.context.metrics.scalar("epsilon", float(np.mean(self._exploration())))

    def _see(self, inputs: Inputs, restart: Mask) -> None:
        self._seen = inputs
        super()._see(inputs, restart)

    def _act(self) -> Leaves:
        values = self._online_values(self._inputs, self._state)
        actions = self._chosen(values)
        if not self.context.exploit:
            self._transitions.act(self._seen, self._restart, actions, values)
        return [actions + self._first_action]

    def _outcome(self, step: StepResult, rewards: npt.NDArray[Any]) -> None:
        final, values = step.cut_off(), None
        inputs = None if final is None else self._encoder.peek(final)
        if inputs is not None and self.config.actors_know_priorities:
            outputs = self._online_values(self._normalization.observations(inputs), no_state(len(inputs)))
            values = outputs.max(axis=1)
        unit = self._normalization.reward_unit
        self._transitions.outcome(step, rewards * unit, inputs, values, unit)
