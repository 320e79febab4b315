"""Whole episodes, one update for each (Mnih et al. 2016, section 9)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import Mask, StepResult
from relaax.algorithm_base.rollout import Batch, rewards_and_discounts
from relaax.algorithm_base.values import generalized_advantages
from relaax.nn.distributions import Distribution
from relaax.nn.specification import NetworkSpec

Array = npt.NDArray[np.float32]

INITIAL_LENGTH = 256


class Episodes:
    """The current episodes of N environments, with the methods of a `Rollout`.

    It is full when an episode has ended or has `longest` steps. A batch is one environment's episode, [T, 1, ...] with
    T its length. Episodes that end in the same step make one batch: after separate updates, the second gradient would
    be computed on parameters that did not choose its actions.

    Each environment's steps are in its column of arrays [capacity, N, ...], from row 0 on. The capacity grows with the
    longest episode.
    """

    batch_shape: tuple[int | None, int | None] = (None, None)
    row = None
    """A batch has no row with all N environments."""

    def __init__(
        self,
        longest: int,
        environments: int,
        spec: NetworkSpec,
        input_dtype: Any,
        policy: Distribution,
        *,
        mask_size: int = 0,
    ) -> None:
        self._longest = longest
        shape = (min(INITIAL_LENGTH, longest + 1), environments)  # one more step is added before a batch is made
        self._inputs: npt.NDArray[Any] = np.zeros((*shape, *spec.inputs), input_dtype)
        self._actions: npt.NDArray[Any] = np.zeros((*shape, *policy.action_shape), policy.action_dtype)
        self._values: Array = np.zeros(shape, np.float32)
        self._valid: Mask = np.ones((*shape, mask_size), np.bool_)
        self._rewards: Array = np.zeros(shape, np.float32)
        self._discounts: Array = np.zeros(shape, np.float32)
        self._state: Array = np.zeros((environments, spec.state_size), np.float32)  # before the first step
        self._newest_state = self._state  # before the last step
        self._weights: Array = np.ones(environments, np.float32)  # of the first steps' advantages
        self._columns = np.arange(environments)
        self._steps = np.zeros(environments, np.int64)
        self._ended: Mask = np.zeros(environments, np.bool_)

    @property
    def full(self) -> bool:
        return bool(self._ended.any() or self._steps.max() >= self._longest)

    def clear(self) -> None:
        self._steps[:] = 0
        self._ended[:] = False

    def act(
        self,
        inputs: npt.NDArray[Any],
        actions: npt.NDArray[Any],
        values: Array,
        state: Array,
        restart: Mask,
        valid: Mask | None = None,
    ) -> None:
        if self._steps.max() == len(self._rewards):
            self._grow()
        at = self._steps, self._columns
        self._inputs[at] = inputs
        self._actions[at] = actions
        self._values[at] = values
        if valid is not None:
            self._valid[at] = valid
        starts = self._steps == 0
        if starts.any():
            self._state[starts] = state[starts]
            self._weights[starts] = 1.0
        self._newest_state = state

    def outcome(self, step: StepResult, rewards: npt.NDArray[Any], gamma: float, final_values: Array | None) -> None:
        at = self._steps, self._columns
        self._rewards[at], self._discounts[at] = rewards_and_discounts(step, rewards, gamma, final_values)
        self._steps += ~step.first  # the next step overwrites a void one
        self._ended[:] = step.ended

    def batch(self, expected: Array | None, gae_lambda: float) -> Batch:
        """Return a batch of copies of the finished columns (see `Rollout.batch`)."""
        ready = np.flatnonzero(self._ended | (self._steps >= self._longest))
        lengths = self._steps[ready]
        own = slice(lengths.max()), ready
        rewards, values = self._rewards[own], self._values[own]
        # The last discount of an ended episode is 0, so the rows after it do not affect its advantages.
        bootstrap_value = self._values[lengths, ready] if expected is None else expected[ready]
        advantages = generalized_advantages(rewards, self._discounts[own], values, bootstrap_value, gae_lambda)
        targets = advantages + values
        advantages[0] *= self._weights[ready]
        batch = Batch(
            inputs=self._inputs[own],
            actions=self._actions[own],
            advantages=advantages,
            targets=targets,
            mask=(np.arange(len(rewards))[:, None] < lengths).astype(np.float32),
            state=self._state[ready],
            restart=np.zeros(rewards.shape, np.bool_),
            valid=self._valid[own] if self._valid.size else None,
        )
        self._steps[ready] = 0
        self._ended[ready] = False
        if expected is None:
            for column in (self._inputs, self._actions, self._values, self._valid):
                column[0, ready] = column[lengths, ready]
            self._state[ready] = self._newest_state[ready]
            self._weights[ready] = 1.0
        return batch

    def newest(self) -> npt.NDArray[Any]:
        newest: npt.NDArray[Any] = self._inputs[self._steps, self._columns]
        return newest

    def begin_next(self, values: Array, weights: Array) -> None:
        """Set new values and weights (see `Rollout.begin_next`) in the environments that start an episode."""
        starts = self._steps == 0
        self._values[0, starts] = values[starts]
        self._weights[starts] = weights[starts]

    def _grow(self) -> None:
        for name in ("_inputs", "_actions", "_values", "_valid", "_rewards", "_discounts"):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
