"""The agent of async_q, async_sarsa and n_step_q (Mnih et al. 2016), and their three targets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentBase, AgentContext, Discrete, Leaves, Mask, Pulled, Space, StepResult
from relaax.algorithm_base.acting.exploration import LinearAnnealing, drawn_epsilons, epsilon_greedy
from relaax.algorithm_base.acting.policy_graph import LargestOutput, PolicyGraph
from relaax.algorithm_base.exchange import Exchange
from relaax.algorithm_base.inputs import Inputs
from relaax.algorithm_base.ragged import RaggedRollout
from relaax.algorithm_base.rollout import Rollout, Trajectories
from relaax.algorithm_base.values import (
    HeldOutStates,
    ValueLoss,
    greedy_values,
    n_step_returns,
    one_step_targets,
    values_of,
)
from relaax.nn.engine import Actor, Engine, make_actor, make_engine

from .model import ValueConfig, action_values, value_network, value_refusal

Array = npt.NDArray[np.float32]
Values = Callable[..., Array]


def q_targets(rollout: Trajectories, target_values: Values, config: Any) -> Array:
    """Return y_t = r_t + gamma * max_a Q(s_{t+1}, a; target), or its double estimate (Algorithm 1)."""
    selector, valid = rollout.values[1:] if config.double else None, _rows(rollout.valid, slice(1, None))
    values = greedy_values(target_values(rollout.inputs[1:]), selector, valid)
    return one_step_targets(rollout.rewards, rollout.discounts, values)


def sarsa_targets(rollout: Trajectories, target_values: Values, config: Any) -> Array:
    """Return y_t = r_t + gamma * Q(s_{t+1}, a_{t+1}; target), where a_{t+1} is the action taken (section 4)."""
    values = values_of(target_values(rollout.inputs[1:]), rollout.actions[1:])
    return one_step_targets(rollout.rewards, rollout.discounts, values)


def n_step_targets(rollout: Trajectories, target_values: Values, config: Any) -> Array:
    """Return the discounted sum of the rewards from t to the rollout's end, plus a bootstrap value (Algorithm S2).

    The bootstrap value is the discounted max_a Q(s, a; target) of the state s after the rollout.
    """
    following = target_values(rollout.newest(), rollout.states[1])
    selector = rollout.values[-1] if config.double else None
    bootstrap_value = greedy_values(following, selector, _rows(rollout.valid, -1))
    return n_step_returns(rollout.rewards, rollout.discounts, bootstrap_value)


def _rows(valid: Mask | None, rows: slice | int) -> Mask | None:
    return None if valid is None else valid[rows]


TARGETS = {"async_q": q_targets, "async_sarsa": sarsa_targets, "n_step_q": n_step_targets}
"""Functions that return the targets y_t of a full rollout (T + 1 rows), float32 [T, N].

If an episode terminated at t, y_t is r_t."""


class Agent(AgentBase):
    """One actor-learner of Mnih et al. 2016, section 4, over N environments at once.

    It acts epsilon-greedily. Every `update_interval` steps, while the environments step, it pushes the gradient of
    (y_t - Q(s_t, a_t))^2, summed over these steps and averaged over the environments. `TARGETS` gives the targets y_t.

    The first action of a rollout is chosen before the previous rollout's update, by parameters that are one update
    older. The gradient uses the value of this action by the newer parameters.
    """

    out_of_step = chosen_actions = True

    def __init__(self, config: ValueConfig, context: AgentContext) -> None:
        super().__init__(config, context)
        assert isinstance(context.action_space, Discrete)  # `refusal` has refused other spaces
        self._first_action = context.action_space.start
        self._q = action_values(config, context.action_space)
        self._spec = spec = value_network(config, context.observation_space, self._q)
        self._inputs = Inputs(config, context, spec)
        n, dtype = context.environments, self._inputs.dtype
        length, masks = config.update_interval, self._inputs.mask_size
        buffer: type[Rollout | RaggedRollout] = RaggedRollout if context.out_of_step else Rollout
        self._rollout = buffer(length, n, spec, dtype, value_shape=(self._q.choices,), mask_size=masks)
        self._engine: Engine | None = None
        self._target: Engine | None = None
        if not context.exploit:
            self._target = make_engine(spec, dtype, (1, None))
            self._engine = make_engine(spec, dtype, self._rollout.batch_shape)
        self._actor: Actor = self._engine or make_actor(spec, dtype)
        self._rng = np.random.default_rng([context.seed, *context.actors])
        self._epsilon_ranks: range | None = None  # the actors' ranks for which final epsilons were drawn
        self._held_out = HeldOutStates(0 if config.recurrent else config.held_out_states)
        self._target_parameters: Array | None = None
        self._mean: Array | None = None  # the mean image of the target network
        self._exchange = Exchange(config, context)
        self._use(self._exchange.pull())

    @classmethod
    def refusal(cls, config: ValueConfig, observation_space: Space, action_space: Space) -> str | None:
        return value_refusal(config, observation_space, action_space)

    def reset(self, observations: Leaves) -> Leaves:
        self._rollout.clear()
        self._exchange.env_steps = 0
        self._inputs.reset(observations)
        return self._act()

    def step(self, step: StepResult) -> Leaves:
        if self.context.exploit:
            self._use(self._exchange.pull_if_old())
        else:
            self.learn()  # has no effect if the caller has already called it
            rewards = self._inputs.clipped_rewards(step)
            final = self._inputs.truncated_inputs(step)
            values = None
            if final is not None:
                valid = self._inputs.truncated_valid(step)
                values = self._final_values(self._inputs.normalized(final), valid)
            if step.chosen is not None and step.actions is not None:
                self._rollout.replace_actions(step.chosen, step.actions[0] - self._first_action)
            self._rollout.outcome(step, rewards, self.config.rewards_gamma, values)
            self._exchange.env_steps += step.env_steps
            if self._rollout.uneven and self._engine is not None:
                self._engine.forget()
        self._inputs.next(step)
        return self._act()

    def learn(self) -> None:
        """Update from a full rollout. Its last row, T, becomes the first row of the next rollout."""
        rollout = self._rollout
        if self.context.exploit or not rollout.full:
            return
        steps, values = rollout.take(), None
        if steps.mask.any():
            self._update(steps, TARGETS[self.config.name](steps, self._target_values, self.config))
        else:  # all transitions are void
            self._use(self._exchange.push(None))
        if self._spec.lstm:  # the gradient of an LSTM needs the activations of all rows, also of the first one
            outputs, self._inputs.state_after = self._actor.act(rollout.newest(), self._inputs.state, rollout.row)
            values = self._q.values(outputs)
        rollout.begin_next(values)

    def policy_graph(self) -> PolicyGraph:
        head = "advantage" if self.config.dueling else "q"  # the state's value does not change the order of the actions
        parameters = self.context.parameters.pull().parameters
        return self._inputs.policy_graph(parameters, tuple(self._q.heads), (LargestOutput(head, self._first_action),))

    def _act(self) -> Leaves:
        inputs, exploit = self._inputs, self.context.exploit
        if not exploit:
            self._held_out.add(inputs.unnormalized, inputs.valid, inputs.held)
        keep = None if exploit else self._rollout.row
        outputs, inputs.state_after = self._actor.act(inputs.newest, inputs.state, keep)
        values = self._q.values(outputs)
        actions = self._choose_actions(values, inputs.valid)
        if not exploit:
            self._rollout.act(inputs.newest, actions, values, inputs.state, inputs.restart, inputs.valid)
        return [actions + self._first_action]

    def _choose_actions(self, values: Array, valid: Mask | None) -> npt.NDArray[np.int64]:
        """Return the policy's actions for these values, int64 [N], from 0. `valid`: bool [N, A]; None: all are."""
        if not self.context.exploit:
            return epsilon_greedy(values, self._exploration(), self._rng, valid)
        epsilon = 0.0 if self.config.greedy_exploit else self.config.exploit_epsilon
        return epsilon_greedy(values, epsilon, self._rng, valid)

    def _exploration(self) -> npt.NDArray[np.float64]:
        """Return the probability of a random action of each actor, float64 [N]."""
        exploration: npt.NDArray[np.float64] = self._epsilon(self._pulled.frames)
        return exploration

    def _online_values(self, inputs: npt.NDArray[Any], state: Array) -> Array:
        """Return the online network's values, float32 [N, A], of inputs [N, ...]."""
        return self._q.values(self._actor.act(inputs, state)[0])

    def _target_values(self, inputs: npt.NDArray[Any], state: Array | None = None) -> Array:
        """Return the target network's values, float32 [..., A], of inputs [..., *input shape].

        `state`: the LSTM's state before these inputs; optional without an LSTM.
        """
        assert self._target is not None, "a value-based agent in exploit mode has no target network"
        leading = inputs.shape[: inputs.ndim - len(self._spec.inputs)]
        flat = inputs.reshape(-1, *self._spec.inputs)
        outputs, _ = self._target.act(flat, np.zeros((len(flat), 0), np.float32) if state is None else state)
        return self._q.values(outputs).reshape(*leading, -1)

    def _final_values(self, inputs: npt.NDArray[Any], valid: Mask | None) -> Array:
        """Return the values of the final observations of truncated episodes, float32 [N]. `valid`: their valid actions.

        No action follows a final observation. For Sarsa, the policy chooses one.
        """
        state = self._inputs.state_after
        values = self._target_values(inputs, state)
        if self.config.name == "async_sarsa":
            return values_of(values, self._choose_actions(self._online_values(inputs, state), valid))
        return greedy_values(values, self._online_values(inputs, state) if self.config.double else None, valid)

    def _update(self, rollout: Trajectories, targets: Array) -> None:
        """Push the gradient of the loss, summed over steps and averaged over environments."""
        assert self._engine is not None, "a value-based agent in exploit mode does not learn"
        weights = rollout.mask.reshape(-1) / np.float32(rollout.mask.shape[1])
        loss = ValueLoss(self._q, self.config.errors, rollout.actions[:-1].reshape(-1), targets.reshape(-1), weights)
        memory = self.context.parameters.gradient_memory()
        gradient = self._engine.gradient(rollout.inputs[:-1], rollout.states[0], rollout.restart[:-1], loss, memory)
        scalars = loss.means
        whole = scalars["loss"]
        scalars["epsilon"] = float(np.mean(self._exploration()))
        inputs = self._held_out.due(time.monotonic())
        if inputs is not None:
            values = self._online_values(self._inputs.normalized(inputs), np.zeros((len(inputs), 0), np.float32))
            scalars["q/held_out"] = float(greedy_values(values, valid=self._held_out.valid).mean())
        self._use(self._exchange.push(gradient, whole, scalars))

    def _use(self, pulled: Pulled | None) -> None:
        """Use new parameters, if there are any. If the actors' ranks have changed, draw new final epsilons."""
        if pulled is None:
            return
        self._pulled = pulled
        self._inputs.set_statistics(pulled)
        mean = self._inputs.mean_image
        self._actor.set_parameters(pulled.parameters, mean)
        ranks = range(pulled.actor_rank, pulled.actor_rank + self.context.environments)
        if ranks != self._epsilon_ranks:
            config, self._epsilon_ranks = self.config, ranks
            final = drawn_epsilons(self.context.seed, ranks, config.final_epsilons, config.final_epsilon_probabilities)
            self._epsilon = LinearAnnealing(config.initial_epsilon, final, config.exploration_frames)
        if self._target is not None and (pulled.target is not self._target_parameters or mean is not self._mean):
            assert pulled.target is not None, "a value-based agent needs a target network"
            self._target.set_parameters(pulled.target, mean)
            self._target_parameters, self._mean = pulled.target, mean
