"""The actor of all algorithms with replay memory."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentBase, AgentContext, LearnerContext, Leaves, Mask, Pulled, StepResult
from relaax.algorithm_base.exchange import Exchange
from relaax.algorithm_base.inputs import Inputs
from relaax.algorithm_base.learner import record_sample
from relaax.algorithm_base.transitions import Transitions
from relaax.nn.engine import Actor, make_actor
from relaax.nn.specification import NetworkSpec

from .learner import ReplayLearner
from .model import ReplayConfig

Array = npt.NDArray[np.float32]
MakeLearner = Callable[[Any, LearnerContext], ReplayLearner]


class ReplayAgent(AgentBase):
    """One actor over N environments. It inserts transitions into replay memory. A subclass chooses the actions.

    If learners are bundled, it runs a learner while the environments step, for as many updates as the memory allows.
    If the last push was `actor_interval` steps ago, it reports its step count and receives parameters.
    """

    out_of_step = chosen_actions = True

    def __init__(
        self,
        config: ReplayConfig,
        context: AgentContext,
        spec: NetworkSpec,
        make_learner: MakeLearner,
        first: int = 0,
        mean_in_network: bool = True,
    ) -> None:
        """`spec`: the network that chooses actions. `make_learner` makes a bundled learner.

        `first`: the index of the network's first parameter. `mean_in_network`: see `Inputs`.
        """
        super().__init__(config, context)
        self._inputs = Inputs(config, context, spec, mean_in_network)
        self._transitions = Transitions(
            context.replay.writers if context.replay else [],
            config.layout(context.observation_space),
            steps=config.n_step,
            gamma=config.rewards_gamma,
            priority_offset=config.priority_offset if config.actors_set_priorities else None,
            insert_size=config.insert_size,
            bounded=self._inputs.normalization.bounds_inputs,
            client=context.client,
            metrics=context.metrics,
            action=config.action_field(context.action_space),
            marks_chosen=config.marks_demonstrations,
        )
        bundled = config.bundled and context.replay is not None
        self._learner = make_learner(config, LearnerContext.beside(context, context.actors[0])) if bundled else None
        self._updates = math.ceil((config.samples_per_insert or 0) * context.environments / config.batch_size)
        self._step_pending = False  # whether `learn` has work for the newest step
        self._steps_since_push = 0  # steps since the last push
        self._actor: Actor = make_actor(spec, self._inputs.dtype, compiled=not context.exploit, first=first)
        self._rng = np.random.default_rng([context.seed, *context.actors])
        self._exchange = Exchange(config, context)

    @abstractmethod
    def _act(self) -> Leaves:
        """Choose actions for `_inputs`. In training, add them to `_transitions`."""

    @abstractmethod
    def _replace_actions(self, chosen: Mask, actions: Leaves) -> None:
        """Replace the last actions in `_transitions` by `actions` of the client where `chosen`, bool [N]."""

    @abstractmethod
    def _best_values(self, inputs: npt.NDArray[Any], valid: Mask | None) -> Array:
        """Return the values of the best actions, float32 [N], for the priorities of transitions.

        `inputs`: [N, ...], normalised. `valid`: the valid actions, bool [N, A]; None without masks.
        """

    def _record_exploration(self) -> None:
        """Record a metric of the exploration. It is called after each pull of parameters."""

    def _use(self, pulled: Pulled) -> None:
        """Use new parameters. A subclass sets those of its networks."""
        self._pulled = pulled
        self._inputs.set_statistics(pulled)

    def reset(self, observations: Leaves) -> Leaves:
        self._transitions.clear()
        self._step_pending, self._steps_since_push, self._exchange.env_steps = False, 0, 0
        self._inputs.reset(observations)
        return self._act()

    def step(self, step: StepResult) -> Leaves:
        if self.context.exploit:
            self._use_if_any(self._exchange.pull_if_old())
        else:
            self.learn()  # has no effect if the caller has already called it
            rewards = self._inputs.clipped_rewards(step)
            if step.chosen is not None and step.actions is not None:
                self._replace_actions(step.chosen, step.actions)  # before its inputs are overwritten by final ones
            final, values = self._inputs.truncated_inputs(step), None
            valid = self._inputs.truncated_valid(step)
            if final is not None and self.config.actors_set_priorities:
                values = self._best_values(self._inputs.normalized(final), valid)
            unit = self._inputs.normalization.reward_unit  # the memory stores clipped rewards in their original unit
            self._transitions.outcome(step, rewards * unit, final, values, unit, valid)
            self._exchange.env_steps += step.env_steps
            self._step_pending, self._steps_since_push = True, self._steps_since_push + 1
        self._inputs.next(step)
        return self._act()

    def learn(self) -> None:
        """Insert transitions, and run the bundled learner.

        Push the step count if the last push was `actor_interval` steps ago.
        """
        self._transitions.insert()
        if not self._step_pending:
            return
        self._step_pending = False
        if self._learner:
            self._run_learner(self._learner)
        if self._steps_since_push >= self.config.actor_interval:
            self._steps_since_push = 0
            self._use_if_any(self._exchange.push(None))
            self._record_exploration()

    def close(self) -> None:
        self._transitions.close()

    def _run_learner(self, learner: ReplayLearner) -> None:
        assert self.context.replay is not None, "a bundled learner needs a replay memory"
        for _ in range(self._updates):
            sampled = self.context.replay.sample(learner.batch_size, timeout=0.0)
            if sampled is None:
                break
            learner.exchange.env_steps, self._exchange.env_steps = self._exchange.env_steps, 0
            self._steps_since_push = 0
            record_sample(self.context.metrics, sampled)
            learner.step(sampled)
        learner.finish()
        if learner.pulled is not self._pulled:
            self._use(self._exchange.record_pull(learner.pulled))
            self._record_exploration()

    def _use_if_any(self, pulled: Pulled | None) -> None:
        if pulled is not None:
            self._use(pulled)
