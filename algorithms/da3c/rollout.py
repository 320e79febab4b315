"""A few steps of N environments, from acting to learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import Step
from relaax.tf.returns import n_step_returns

Array = npt.NDArray[np.float32]


class Rollout:
    """T steps of N environments in preallocated arrays [T, N, ...]."""

    def __init__(self, length: int, environments: int, input_shape: tuple[int, ...], input_dtype: Any) -> None:
        shape = (length, environments)
        self.inputs: npt.NDArray[Any] = np.zeros((*shape, *input_shape), input_dtype)
        self.actions: npt.NDArray[np.int32] = np.zeros(shape, np.int32)
        self.rewards: Array = np.zeros(shape, np.float32)
        self.discounts: Array = np.zeros(shape, np.float32)
        self.mask: Array = np.zeros(shape, np.float32)
        self.steps = 0

    @property
    def full(self) -> bool:
        """Whether there is no room for another step."""
        return self.steps == len(self.actions)

    @property
    def env_steps(self) -> int:
        """Transitions that count."""
        return int(self.mask[: self.steps].sum())

    def act(self, inputs: npt.NDArray[Any], actions: npt.NDArray[np.int32]) -> None:
        """What was seen and done; `outcome` follows."""
        self.inputs[self.steps] = inputs
        self.actions[self.steps] = actions

    def outcome(self, step: Step, gamma: float, clip: float | None, final_values: Array | None) -> None:
        """What came of it.

        An episode that ended is not continued into the next one: discount 0. One that was truncated would have gone
        on, so the value of its final observation, `final_values` float32 [N], takes the place of what was cut off.
        A void transition (`step.first`) is masked.
        """
        t = self.steps
        np.copyto(
            self.rewards[t], step.rewards if clip is None else np.clip(step.rewards, -clip, clip), casting="same_kind"
        )
        np.multiply(gamma, ~(step.ended | step.first), out=self.discounts[t])
        self.mask[t] = ~step.first
        self.rewards[t][step.first] = 0.0  # void, but it may be anything, and 0 x infinity is no zero
        if final_values is not None:
            truncated = step.truncated & ~step.terminated
            self.rewards[t][truncated] += gamma * final_values[truncated]
        self.steps += 1

    def returns(self, bootstrap_value: Array) -> Array:
        """n-step returns float32 [T, N]; `bootstrap_value` float32 [N] is the value of what is seen now."""
        return n_step_returns(self.rewards, self.discounts, bootstrap_value)
