"""Gather a few steps of N environments, from acting to learning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
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


class Experience(ABC):
    """The experience of N environments. `act` and `outcome` take turns; if it is `full`, a `batch` is due.

    Before the next `act`, or after it: what was seen and done then begins what comes next, and the batch ends with the
    values that were given there; when it was learned from, `look_again` follows.
    """

    batch_shape: tuple[int | None, int | None]
    """T and N of every batch, None if they vary."""

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether there is something to learn from."""

    @property
    def row(self) -> int | None:
        """Of the next batch, what the next `act`, or `look_again`, fills; None if no row of it is that of all N."""
        return None

    @abstractmethod
    def clear(self) -> None:
        """Forget everything: all environments start anew."""

    @abstractmethod
    def act(
        self, inputs: npt.NDArray[Any], actions: npt.NDArray[Any], values: Array, state: Array, restart: Mask
    ) -> None:
        """What was seen and done: [N, ...] each. `values` of the inputs, the LSTM's `state` before them."""

    @abstractmethod
    def outcome(self, step: StepResult, rewards: npt.NDArray[Any], gamma: float, final_values: Array | None) -> None:
        """What came of it.

        `rewards` [N] are those to learn from. An episode that ended is not continued into the next one. One that was
        truncated would have gone on, so the value of its final observation, `final_values` float32 [N], takes the place
        of what was cut off. A void transition (`step.first`) counts nothing.
        """

    @abstractmethod
    def batch(self, expected: Callable[[], Array] | None, gae_lambda: float) -> Batch:
        """Return the batch to learn from and forget it. It is valid until `look_again`, or the next `act`.

        `expected()` is the value of what is seen now, [N]; None after the `act` on it.
        """

    @abstractmethod
    def newest(self) -> npt.NDArray[Any]:
        """After a `batch(None, ...)`: the inputs [N, ...] that were acted on last."""

    @abstractmethod
    def look_again(self, values: Array, weights: Array) -> None:
        """After a `batch(None, ...)`: the values [N] of what was acted on last, by the parameters since.

        `weights` float32 [N]: what these advantages count, for actions that other parameters have chosen.
        """


def what_came_of(
    step: StepResult, rewards: npt.NDArray[Any], gamma: float, final_values: Array | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Rewards [N] and discounts [N] of a step, as `Experience.outcome` says."""
    rewards = np.where(step.first, 0.0, rewards)  # void, but it may be anything, and 0 x infinity is no zero
    if final_values is not None:
        truncated = step.truncated & ~step.terminated
        rewards[truncated] += gamma * final_values[truncated]
    return rewards, gamma * ~step.restart


class RolloutSteps:
    """T steps of N environments in preallocated arrays, from acting to learning; full when all T are there.

    What is acted on has T + 1 rows: the last is the first of the next rollout, if that is acted on before the batch.
    `values` are what the network said of each input, float32 [T + 1, N, *value_shape].
    """

    def __init__(
        self,
        length: int,
        environments: int,
        spec: NetworkSpec,
        input_dtype: Any,
        *,
        action_shape: tuple[int, ...] = (),
        action_dtype: Any = np.int64,
        value_shape: tuple[int, ...] = (),
    ) -> None:
        self.batch_shape: tuple[int | None, int | None] = (length, environments)
        shape, one_more = (length, environments), (length + 1, environments)
        self.length = length
        self.inputs: npt.NDArray[Any] = np.zeros((*one_more, *spec.inputs), input_dtype)
        self.actions: npt.NDArray[Any] = np.zeros((*one_more, *action_shape), action_dtype)
        self.values: Array = np.zeros((*one_more, *value_shape), np.float32)
        self.restart: Mask = np.zeros(one_more, np.bool_)
        self.rewards: Array = np.zeros(shape, np.float32)
        self.discounts: Array = np.zeros(shape, np.float32)
        self.mask: Array = np.zeros(shape, np.float32)
        self.states: Array = np.zeros((2, environments, spec.state_size), np.float32)  # before row 0, before row T
        self.steps = 0

    @property
    def full(self) -> bool:
        """Whether there is something to learn from."""
        return self.steps == self.length

    @property
    def row(self) -> int | None:
        """Of the next batch, what the next `act` fills; None if it is the first of the batch after it."""
        return None if self.full else self.steps

    def clear(self) -> None:
        """Forget everything: all environments start anew."""
        self.steps = 0

    def act(
        self, inputs: npt.NDArray[Any], actions: npt.NDArray[Any], values: Array, state: Array, restart: Mask
    ) -> None:
        """What was seen and done: [N, ...] each. `values` of the inputs, the LSTM's `state` before them."""
        t = self.steps
        if t == 0 or t == self.length:
            self.states[t and 1] = state
        self.inputs[t] = inputs
        self.actions[t] = actions
        self.values[t] = values
        self.restart[t] = restart

    def outcome(self, step: StepResult, rewards: npt.NDArray[Any], gamma: float, final_values: Array | None) -> None:
        """What came of it (see `Experience.outcome`)."""
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

    def begin_next(self) -> None:
        """Begin the next rollout with the last row."""
        self.steps = 0
        for rows in (self.inputs, self.actions, self.values, self.restart, self.states):
            rows[0] = rows[-1]


class Rollout(RolloutSteps, Experience):
    """A rollout for an actor-critic: its batch has advantages."""

    def __init__(
        self, length: int, environments: int, spec: NetworkSpec, input_dtype: Any, policy: Distribution
    ) -> None:
        super().__init__(
            length,
            environments,
            spec,
            input_dtype,
            action_shape=policy.action_shape,
            action_dtype=policy.action_dtype,
        )
        self.weights: Array = np.ones(environments, np.float32)  # of the advantages of row 0

    def act(
        self, inputs: npt.NDArray[Any], actions: npt.NDArray[Any], values: Array, state: Array, restart: Mask
    ) -> None:
        if self.steps == 0:
            self.weights[:] = 1.0
        super().act(inputs, actions, values, state, restart)

    def batch(self, expected: Callable[[], Array] | None, gae_lambda: float) -> Batch:
        self.steps = 0
        bootstrap_value = self.values[-1] if expected is None else expected()
        values = self.values[:-1]
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

    def look_again(self, values: Array, weights: Array) -> None:
        """The last row is the first of the next rollout."""
        self.begin_next()
        self.values[0] = values
        self.weights[:] = weights
