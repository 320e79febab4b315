"""The actor of gorila (Nair et al. 2015) and of apex (Horgan et al. 2018)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentBase, AgentContext, Discrete, LearnerContext, Leaves, Pulled, Space, StepResult
from relaax.algorithm_base.acting.exploration import epsilon_greedy
from relaax.algorithm_base.acting.policy_graph import LargestOutput, PolicyGraph
from relaax.algorithm_base.exchange import Exchange
from relaax.algorithm_base.inputs import Inputs
from relaax.algorithm_base.learner import record_sample
from relaax.algorithm_base.transitions import Transitions
from relaax.algorithm_base.values import greedy_values
from relaax.nn.engine import Actor, make_actor, make_engine

from .._value_based.model import action_values, value_network, value_refusal
from .learner import Learner
from .model import ReplayConfig

Array = npt.NDArray[np.float32]


class Agent(AgentBase):
    """One actor over N environments. It acts epsilon-greedily and inserts transitions into replay memory.

    If learners are bundled, it runs a learner while the environments step, for as many updates as the memory allows.
    If the last push was `actor_interval` steps ago, it reports its step count and receives parameters.
    """

    out_of_step = True

    def __init__(self, config: ReplayConfig, context: AgentContext) -> None:
        super().__init__(config, context)
        assert isinstance(context.action_space, Discrete)  # `refusal` has refused other spaces
        self._first_action = context.action_space.start
        self._q = action_values(config, context.action_space)
        spec = value_network(config, context.observation_space, self._q)
        self._inputs = Inputs(config, context, spec)
        self._transitions = Transitions(
            context.replay.writers if context.replay else [],
            config.layout(context.observation_space),
            steps=config.n_step,
            gamma=config.rewards_gamma,
            priority_offset=config.priority_offset if config.actors_set_priorities else None,
            bounded=self._inputs.normalization.bounds_inputs,
            client=context.client,
            metrics=context.metrics,
        )
        bundled = config.bundled and context.replay is not None
        self._learner = Learner(config, LearnerContext.beside(context, context.actors[0])) if bundled else None
        self._updates = math.ceil((config.samples_per_insert or 0) * context.environments / config.batch_size)
        self._step_pending = False  # whether `learn` has work for the newest step
        self._steps_since_push = 0  # steps since the last push
        dtype = self._inputs.dtype
        self._actor: Actor = make_actor(spec, dtype) if context.exploit else make_engine(spec, dtype, (1, None))
        self._rng = np.random.default_rng([context.seed, *context.actors])
        self._exchange = Exchange(config, context)
        self._use(self._exchange.pull())

    @classmethod
    def refusal(cls, config: ReplayConfig, observation_space: Space, action_space: Space) -> str | None:
        return value_refusal(config, observation_space, action_space)

    def reset(self, observations: Leaves) -> Leaves:
        self._transitions.clear()
        self._step_pending, self._steps_since_push, self._exchange.env_steps = False, 0, 0
        self._inputs.reset(observations)
        return self._act()

    def step(self, step: StepResult) -> Leaves:
        if self.context.exploit:
            self._use(self._exchange.pull_if_old())
        else:
            self.learn()  # has no effect if the caller has already called it
            rewards = self._inputs.clipped_rewards(step)
            final, values = self._inputs.truncated_inputs(step), None
            valid = self._inputs.truncated_valid(step)
            if final is not None and self.config.actors_set_priorities:
                values = greedy_values(self._values(self._inputs.normalized(final)), valid=valid)
            unit = self._inputs.normalization.reward_unit  # the memory stores clipped rewards in their original unit
            self._transitions.outcome(step, rewards * unit, final, values, unit, valid)
            self._exchange.env_steps += step.env_steps
            self._step_pending, self._steps_since_push = True, self._steps_since_push + 1
        self._inputs.next(step)
        return self._act()

    def learn(self) -> None:
        """Run the bundled learner. Push the step count if the last push was `actor_interval` steps ago."""
        if not self._step_pending:
            return
        self._step_pending = False
        if self._learner:
            self._run_learner(self._learner)
        if self._steps_since_push >= self.config.actor_interval:
            self._steps_since_push = 0
            self._use(self._exchange.push(None))
            self._record_exploration()

    def policy_graph(self) -> PolicyGraph:
        head = "advantage" if self.config.dueling else "q"  # the state's value does not change the order of the actions
        parameters = self.context.parameters.pull().parameters
        return self._inputs.policy_graph(parameters, tuple(self._q.heads), (LargestOutput(head, self._first_action),))

    def _act(self) -> Leaves:
        inputs, config = self._inputs, self.config
        values = self._values(inputs.newest)
        if self.context.exploit:
            epsilon = 0.0 if config.greedy_exploit else config.exploit_epsilon
            actions = epsilon_greedy(values, epsilon, self._rng, inputs.valid)
        else:
            actions = epsilon_greedy(values, self._exploration(), self._rng, inputs.valid)
            self._transitions.act(inputs.unnormalized, inputs.restart, actions, values, inputs.valid, inputs.held)
        return [actions + self._first_action]

    def _values(self, inputs: npt.NDArray[np.generic]) -> Array:
        return self._q.values(self._actor.act(inputs, self._inputs.state)[0])

    def _exploration(self) -> npt.NDArray[np.float64]:
        """Return the probability of a random action, float64 [N] or one number for all environments."""
        pulled = self._pulled
        ranks = range(pulled.actor_rank, pulled.actor_rank + self.context.environments)
        exploration: npt.NDArray[np.float64] = self.config.exploration(pulled.frames, ranks, pulled.actor_count)
        return exploration

    def _run_learner(self, learner: Learner) -> None:
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

    def _record_exploration(self) -> None:
        self.context.metrics.scalar("epsilon", float(np.mean(self._exploration())))

    def _use(self, pulled: Pulled | None) -> None:
        """Use new parameters, if there are any."""
        if pulled is not None:
            self._pulled = pulled
            self._actor.set_parameters(pulled.parameters)
            self._inputs.set_statistics(pulled)
