"""Rollouts: buffers of a few steps of N environments, and the batches made from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.agent import Mask, StepResult
from relaax.algorithm_base.values import generalized_advantages
from relaax.nn.distributions import Distribution
from relaax.nn.specification import NetworkSpec

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Batch:
    """The input of one gradient: T steps of N environments. An example with mask 0 has no effect on it.

    inputs: [T, N, *input shape], the network inputs that the actions were chosen for.
    actions: [T, N, *action shape].
    advantages, targets (of the value), mask: float32 [T, N].
    state: float32 [N, S], the LSTM's state before the first step.
    restart: bool [T, N], where an input starts an episode.
    valid: bool [T, N, choices], the actions that were valid; None if observations have no action mask.
    log_probability: float32 [T, N], log pi(a_t | s_t) of the policy that acted; None if the rollout does not store it.
    chosen: bool [T, N], where the client chose the action; None if it chose none.
    """

    inputs: npt.NDArray[Any]
    actions: npt.NDArray[Any]
    advantages: Array
    targets: Array
    mask: Array
    state: Array
    restart: Mask
    valid: Mask | None = None
    log_probability: Array | None = None
    chosen: Mask | None = None


def rewards_and_discounts(
    step: StepResult, rewards: npt.NDArray[Any], gamma: float, final_values: Array | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | float]:
    """Return rewards [N] and discounts [N] of a step. `rewards` [N]: the rewards to learn from.

    The discount is `gamma`, or 0 if the next observation starts another episode. If an episode was truncated, the
    discounted value of its final observation, from `final_values` float32 [N], is added to the reward. The reward of a
    void transition (`step.first`) becomes 0. If the step is plain, these are `rewards` and `gamma` themselves.
    """
    if step.plain:
        return rewards, gamma
    rewards = np.where(step.first, 0.0, rewards)  # no product, because 0 x infinity is NaN
    if final_values is not None:
        truncated = step.truncated & ~step.terminated
        rewards[truncated] += gamma * final_values[truncated]
    return rewards, gamma * ~step.restart


@dataclass
class Trajectories:
    """T steps of N environments, and the actions after them, in row T.

    inputs, actions, values, restart, valid, log_probability, chosen: [T + 1, N, ...]. The values are the network's, of
    the inputs. For the last four see `Batch`.
    rewards, discounts, mask: float32 [T, N]. An example with mask 0 has no meaning.
    states: float32 [2, N, S], the LSTM's states before row 0 and before row T.
    weights: float32 [N], factors of the advantages of row 0.
    """

    inputs: npt.NDArray[Any]
    actions: npt.NDArray[Any]
    values: Array
    restart: Mask
    valid: Mask | None
    rewards: Array
    discounts: Array
    mask: Array
    states: Array
    weights: Array
    log_probability: Array | None = None
    chosen: Mask | None = None

    def newest(self) -> npt.NDArray[Any]:
        """Return the inputs [N, ...] of row T. All T + 1 rows must be filled."""
        newest: npt.NDArray[Any] = self.inputs[-1]
        return newest

    def to_batch(self, expected: Array | None, gae_lambda: float) -> Batch:
        """Return the batch of an actor-critic.

        `expected`: the values of the inputs after the last steps, float32 [N]; None if row T has them.
        """
        values, bootstrap_value = self.values[:-1], self.values[-1] if expected is None else expected
        advantages = generalized_advantages(self.rewards, self.discounts, values, bootstrap_value, gae_lambda)
        targets = advantages + values
        advantages[0] *= self.weights
        return Batch(
            inputs=self.inputs[:-1],
            actions=self.actions[:-1],
            advantages=advantages,
            targets=targets,
            mask=self.mask,
            state=self.states[0],
            restart=self.restart[:-1],
            valid=None if self.valid is None else self.valid[:-1],
            log_probability=None if self.log_probability is None else self.log_probability[:-1],
            chosen=None if self.chosen is None else self.chosen[:-1],
        )


class Rollout(Trajectories):
    """T steps of N environments in preallocated arrays. Call `act` and `outcome` alternately.

    If the agent acts once more before the batch is made, row T is the first row of the next rollout. `value_shape`: of
    the values of an input. `policy` gives the shape and dtype of actions; without it, actions are int64 [N].
    `mask_size`: elements of an environment's action mask; `valid` is None if it is 0. `log_probabilities`: whether to
    store log pi of the actions.
    """

    def __init__(
        self,
        length: int,
        environments: int,
        spec: NetworkSpec,
        input_dtype: Any,
        policy: Distribution | None = None,
        *,
        value_shape: tuple[int, ...] = (),
        mask_size: int = 0,
        log_probabilities: bool = False,
    ) -> None:
        shape, one_more = (length, environments), (length + 1, environments)
        action_shape, action_dtype = (policy.action_shape, policy.action_dtype) if policy else ((), np.int64)
        super().__init__(
            inputs=np.zeros((*one_more, *spec.inputs), input_dtype),
            actions=np.zeros((*one_more, *action_shape), action_dtype),
            values=np.zeros((*one_more, *value_shape), np.float32),
            restart=np.zeros(one_more, np.bool_),
            valid=np.ones((*one_more, mask_size), np.bool_) if mask_size else None,
            rewards=np.zeros(shape, np.float32),
            discounts=np.zeros(shape, np.float32),
            mask=np.zeros(shape, np.float32),
            states=np.zeros((2, environments, spec.state_size), np.float32),
            weights=np.ones(environments, np.float32),
            log_probability=np.zeros(one_more, np.float32) if log_probabilities else None,
        )
        self.batch_shape: tuple[int | None, int | None] = shape
        """T and N of every batch; an argument of `make_engine`."""
        self.length = length
        self.steps = 0

    @property
    def full(self) -> bool:
        """Whether all T steps are complete."""
        return self.steps == self.length

    uneven = False
    """Whether environments have different numbers of steps (see `RaggedRollout`)."""

    @property
    def row(self) -> int | None:
        """Row of the batch that the next `act` fills; None if the rollout is full."""
        return None if self.full else self.steps

    def clear(self) -> None:
        """Discard all steps: every environment starts an episode."""
        self.steps = 0

    def act(
        self,
        inputs: npt.NDArray[Any],
        actions: npt.NDArray[Any],
        values: Array,
        state: Array,
        restart: Mask,
        valid: Mask | None = None,
        log_probability: npt.NDArray[Any] | None = None,
    ) -> None:
        """Add inputs, actions and values, [N, ...] each. `state`: the LSTM's state before the inputs.

        `valid`: bool [N, mask_size], the actions that were valid; None without masks. `log_probability`: [N], of the
        actions; None if the rollout does not store it.
        """
        t = self.steps
        if t == 0 or t == self.length:
            self.states[t and 1] = state
        if t == 0:
            self.weights[:] = 1.0
        self.inputs[t] = inputs
        self.actions[t] = actions
        self.values[t] = values
        self.restart[t] = restart
        if self.valid is not None:
            self.valid[t] = valid
        if self.log_probability is not None:
            self.log_probability[t] = log_probability
        if self.chosen is not None:
            self.chosen[t] = False

    def replace_actions(self, chosen: Mask, actions: npt.NDArray[Any]) -> None:
        """Replace the newest actions by `actions` [N, ...] where `chosen`, bool [N]. Call it before `outcome`."""
        if self.chosen is None:
            self.chosen = np.zeros(self.restart.shape, np.bool_)
        self.chosen[self.steps] = chosen
        self.actions[self.steps][chosen] = actions[chosen]

    def outcome(self, step: StepResult, rewards: npt.NDArray[Any], gamma: float, final_values: Array | None) -> None:
        """Add the outcome of the actions. For the arguments see `rewards_and_discounts`."""
        t = self.steps
        self.steps += 1
        self.rewards[t], self.discounts[t] = rewards_and_discounts(step, rewards, gamma, final_values)
        self.mask[t] = 1.0 if step.plain else ~step.first

    def take(self) -> Trajectories:
        """Return the steps, and start the next rollout. Row T must be filled.

        The result is valid until the next `act` or `begin_next`.
        """
        self.steps = 0
        return self

    def batch(self, expected: Array | None, gae_lambda: float) -> Batch:
        """Return the batch of an actor-critic, and start the next rollout. Valid until the next `act` or `begin_next`.

        `expected`: the values of the current inputs, float32 [N]; None if row T is filled and has these values.
        """
        self.steps = 0
        return self.to_batch(expected, gae_lambda)

    def begin_next(self, values: Array | None = None, weights: Array | None = None) -> None:
        """Start the next rollout with row T as its first row.

        After `take` or `batch(None, ...)`, `values` [N, ...], by newer parameters, replaces the values of this row.
        `weights`, float32 [N], multiplies its advantages: importance weights, because older parameters chose its
        actions.
        """
        self.steps = 0
        for rows in (self.inputs, self.actions, self.values, self.restart, self.states):
            rows[0] = rows[-1]
        for stored in (self.valid, self.log_probability, self.chosen):
            if stored is not None:
                stored[0] = stored[-1]
        if values is not None:
            self.values[0] = values
        if weights is not None:
            self.weights[:] = weights
