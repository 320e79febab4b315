"""A few steps of N environments, from acting to learning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import Mask, Step
from relaax.tf.networks import NetworkSpec
from relaax.tf.policies import Policy
from relaax.tf.returns import generalized_advantages

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one gradient is computed from: T steps of N environments. A masked example counts nothing.

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
    """What N environments went through. `act` and `outcome` take turns; where it is `full`, a `batch` is due."""

    batch_shape: tuple[int | None, int | None]
    """T and N of every batch, None where they vary."""

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether there is something to learn from."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything: all environments start anew."""

    @abstractmethod
    def act(
        self, inputs: npt.NDArray[Any], actions: npt.NDArray[Any], values: Array, state: Array, restart: Mask
    ) -> None:
        """What was seen and done: [N, ...] each. `values` of the inputs, the LSTM's `state` before them."""

    @abstractmethod
    def outcome(self, step: Step, rewards: npt.NDArray[Any], gamma: float, final_values: Array | None) -> None:
        """What came of it.

        `rewards` [N] are those to learn from. An episode that ended is not continued into the next one. One that was
        truncated would have gone on, so the value of its final observation, `final_values` float32 [N], takes the place
        of what was cut off. A void transition (`step.first`) counts nothing.
        """

    @abstractmethod
    def batch(self, expected: Callable[[], Array], gae_lambda: float) -> Batch:
        """What is to be learned from, which is forgotten then. `expected()` is the value of what is seen now, [N]."""


def what_came_of(
    step: Step, rewards: npt.NDArray[Any], gamma: float, final_values: Array | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Rewards [N] and discounts [N] of a step, as `Experience.outcome` says."""
    rewards = np.where(step.first, 0.0, rewards)  # void, but it may be anything, and 0 x infinity is no zero
    if final_values is not None:
        truncated = step.truncated & ~step.terminated
        rewards[truncated] += gamma * final_values[truncated]
    return rewards, gamma * ~(step.ended | step.first)


class Rollout(Experience):
    """T steps of N environments in preallocated arrays [T, N, ...]; full when all T are there."""

    def __init__(self, length: int, environments: int, spec: NetworkSpec, input_dtype: Any, policy: Policy) -> None:
        self.batch_shape = shape = (length, environments)
        self.inputs: npt.NDArray[Any] = np.zeros((*shape, *spec.inputs), input_dtype)
        self.actions: npt.NDArray[Any] = np.zeros((*shape, *policy.action_shape), policy.action_dtype)
        self.values: Array = np.zeros(shape, np.float32)
        self.rewards: Array = np.zeros(shape, np.float32)
        self.discounts: Array = np.zeros(shape, np.float32)
        self.mask: Array = np.zeros(shape, np.float32)
        self.state: Array = np.zeros((environments, spec.state_size), np.float32)
        self.restart: Mask = np.zeros(shape, np.bool_)
        self.steps = 0

    @property
    def full(self) -> bool:
        return self.steps == len(self.actions)

    def clear(self) -> None:
        self.steps = 0

    def act(
        self, inputs: npt.NDArray[Any], actions: npt.NDArray[Any], values: Array, state: Array, restart: Mask
    ) -> None:
        t = self.steps
        if t == 0:
            self.state[...] = state
        self.inputs[t] = inputs
        self.actions[t] = actions
        self.values[t] = values
        self.restart[t] = restart

    def outcome(self, step: Step, rewards: npt.NDArray[Any], gamma: float, final_values: Array | None) -> None:
        t = self.steps
        self.rewards[t], self.discounts[t] = what_came_of(step, rewards, gamma, final_values)
        self.mask[t] = ~step.first
        self.steps += 1

    def batch(self, expected: Callable[[], Array], gae_lambda: float) -> Batch:
        """Views of the arrays: to be used before the next `act`."""
        self.steps = 0
        advantages = generalized_advantages(self.rewards, self.discounts, self.values, expected(), gae_lambda)
        targets = advantages + self.values
        return Batch(self.inputs, self.actions, advantages, targets, self.mask, self.state, self.restart)
