"""Gather a few steps of N environments, from acting to learning."""

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
    """The input of one gradient: T steps of N environments. A masked example counts nothing.

    inputs: [T, N, *input shape], as they were acted on.
    actions: [T, N, *action shape].
    advantages, targets (of the value), mask: float32 [T, N].
    state: float32 [N, S], what the LSTM remembered before the first step.
    restart: bool [T, N], where an input starts an episode.
    """

    inputs: npt.NDArray[Any]
    actions: npt.NDArray[Any]
    advantages: Array
    targets: Array
    mask: Array
    state: Array
    restart: Mask


def what_came_of(
    step: StepResult, rewards: npt.NDArray[Any], gamma: float, final_values: Array | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return rewards [N] and discounts [N] of a step, from the rewards [N] to learn from.

    An episode that ended is not continued into the next one. One that was truncated would have gone on, so the value
    of its final observation, `final_values` float32 [N], takes the place of what was cut off. A void transition
    (`step.first`) counts nothing.
    """
    rewards = np.where(step.first, 0.0, rewards)  # void, but it may be anything, and 0 x infinity is no zero
    if final_values is not None:
        truncated = step.truncated & ~step.terminated
        rewards[truncated] += gamma * final_values[truncated]
    return rewards, gamma * ~step.restart


class Rollout:
    """T steps of N environments in preallocated arrays. `act` and `outcome` take turns; full when all T are there.

    What is acted on has T + 1 rows: the last is the first of the next rollout, if that is acted on before the batch.
    `values` are what the network said of each input, float32 [T + 1, N, *value_shape]. Actions are those of `policy`,
    int64 without one.
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
    ) -> None:
        shape, one_more = (length, environments), (length + 1, environments)
        self.batch_shape: tuple[int | None, int | None] = shape
        """T and N of every batch, for `make_engine`."""
        self.length = length
        action_shape, action_dtype = (policy.action_shape, policy.action_dtype) if policy else ((), np.int64)
        self.inputs: npt.NDArray[Any] = np.zeros((*one_more, *spec.inputs), input_dtype)
        self.actions: npt.NDArray[Any] = np.zeros((*one_more, *action_shape), action_dtype)
        self.values: Array = np.zeros((*one_more, *value_shape), np.float32)
        self.restart: Mask = np.zeros(one_more, np.bool_)
        self.rewards: Array = np.zeros(shape, np.float32)
        self.discounts: Array = np.zeros(shape, np.float32)
        self.mask: Array = np.zeros(shape, np.float32)
        self.states: Array = np.zeros((2, environments, spec.state_size), np.float32)  # before row 0, before row T
        self.weights: Array = np.ones(environments, np.float32)  # of the advantages of row 0
        self.steps = 0

    @property
    def full(self) -> bool:
        """Whether there is something to learn from."""
        return self.steps == self.length

    @property
    def row(self) -> int | None:
        """Row of the next batch that the next `act` fills; None if it is the first of the batch after it."""
        return None if self.full else self.steps

    def clear(self) -> None:
        """Drop everything: all environments start anew."""
        self.steps = 0

    def act(
        self, inputs: npt.NDArray[Any], actions: npt.NDArray[Any], values: Array, state: Array, restart: Mask
    ) -> None:
        """Add what was seen and done, [N, ...] each: `values` of the inputs, the LSTM's `state` before them."""
        t = self.steps
        if t == 0 or t == self.length:
            self.states[t and 1] = state
        if t == 0:
            self.weights[:] = 1.0
        self.inputs[t] = inputs
        self.actions[t] = actions
        self.values[t] = values
        self.restart[t] = restart

    def outcome(self, step: StepResult, rewards: npt.NDArray[Any], gamma: float, final_values: Array | None) -> None:
        """Add the outcome, as `what_came_of` returns it."""
        t = self.steps
        self.steps += 1
        if step.plain:
            self.rewards[t], self.discounts[t], self.mask[t] = rewards, gamma, 1.0
            return
        self.rewards[t], self.discounts[t] = what_came_of(step, rewards, gamma, final_values)
        self.mask[t] = ~step.first

    def newest(self) -> npt.NDArray[Any]:
        """Return the inputs [N, ...] that were acted on last, if all T + 1 rows are there."""
        newest: npt.NDArray[Any] = self.inputs[-1]
        return newest

    def batch(self, expected: Array | None, gae_lambda: float) -> Batch:
        """Return the batch of an actor-critic, valid until the next `act` or `begin_next`; the next one begins.

        `expected`: the value of what is seen now, float32 [N]; None if it was acted on, and has its value by that.
        """
        self.steps = 0
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
        )

    def begin_next(self, values: Array | None = None, weights: Array | None = None) -> None:
        """Begin the next rollout with the last row.

        After a `batch(None, ...)`: with `values` [N] by newer parameters, and with `weights` float32 [N], which its
        advantages count, for actions that other parameters have chosen.
        """
        self.steps = 0
        for rows in (self.inputs, self.actions, self.values, self.restart, self.states):
            rows[0] = rows[-1]
        if values is not None:
            self.values[0] = values
        if weights is not None:
            self.weights[:] = weights
