"""Rollouts of environments out of step: each environment has its own number of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.agent import Mask, StepResult
from relaax.algorithm_base.rollout import Batch, Trajectories, rewards_and_discounts
from relaax.nn.distributions import Distribution
from relaax.nn.specification import NetworkSpec

Array = npt.NDArray[np.float32]


class RaggedRollout:
    """Up to T steps of each of N environments out of step, with the methods of a `Rollout`.

    It is full when an environment has T complete steps. Then all complete steps make a batch, and environments without
    one are left out of it. So the number of environments in a batch varies.

    Each environment's steps are in its column of arrays [capacity, N, ...], from row 0 on. The action after the
    complete steps is *open* until its outcome comes, also while its row is held (`StepResult.held`). If a batch is made
    meanwhile, it becomes row 0 of the next rollout, with the LSTM's state before it. A void step is overwritten.

    While all environments have the same number of steps, rows are written at once, as in a `Rollout`.
    """

    batch_shape: tuple[int | None, int | None] = (None, None)

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
        capacity: int | None = None,
    ) -> None:
        """Make an empty rollout. `length`: T. `capacity`: rows of the arrays; None for T + 1. For others: `Rollout`."""
        self.length = length
        shape = (length + 1 if capacity is None else capacity, environments)
        action_shape, action_dtype = (policy.action_shape, policy.action_dtype) if policy else ((), np.int64)
        self._inputs: npt.NDArray[Any] = np.zeros((*shape, *spec.inputs), input_dtype)
        self._actions: npt.NDArray[Any] = np.zeros((*shape, *action_shape), action_dtype)
        self._values: Array = np.zeros((*shape, *value_shape), np.float32)
        self._restart: Mask = np.zeros(shape, np.bool_)
        self._valid: Mask = np.ones((*shape, mask_size), np.bool_)
        self._log_probability: Array = np.zeros(shape if log_probabilities else (shape[0], 0), np.float32)
        self._chosen: Mask = np.zeros(shape, np.bool_)
        self._has_chosen = False
        self._rewards: Array = np.zeros(shape, np.float32)
        self._discounts: Array = np.zeros(shape, np.float32)
        self._states: Array = np.zeros((2, environments, spec.state_size), np.float32)  # before row 0, the open one
        self._weights: Array = np.ones(environments, np.float32)
        self._columns = np.arange(environments)
        self._steps = np.zeros(environments, np.int64)  # complete ones
        self._even: int | None = 0  # the number of them, if it is the same in all columns
        self._held: Mask | None = None  # rows of the last outcome that are held
        self._acted = False  # whether `act` was called since the last outcome: then all columns have an open action

    @property
    def full(self) -> bool:
        """Whether a batch is due."""
        return bool((self._steps.max() if self._even is None else self._even) >= self.length)

    @property
    def uneven(self) -> bool:
        """Whether environments have different numbers of steps.

        Then call `Engine.forget`: the batch has other inputs in the rows that `row` named before.
        """
        return self._even is None

    @property
    def row(self) -> int | None:
        """Row of the batch that the next `act` fills; None if it fills several rows, or if the rollout is full."""
        return None if self.full else self._even

    def clear(self) -> None:
        """Discard all steps: every environment starts an episode."""
        self._steps[:] = self._even = 0
        self._held, self._acted = None, False

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
        """Add inputs, actions and values, [N, ...] each, of the rows that are not held (see `Rollout.act`)."""
        if self._even is None or self._held is not None:
            acting: Any = slice(None) if self._held is None else np.flatnonzero(~self._held)
            at: Any = self._steps[acting], self._columns[acting]
        else:
            acting, at = slice(None), self._even
        self._inputs[at], self._actions[at], self._values[at] = inputs[acting], actions[acting], values[acting]
        self._restart[at], self._chosen[at] = restart[acting], False
        if valid is not None:
            self._valid[at] = valid[acting]
        if log_probability is not None:
            self._log_probability[at] = log_probability[acting]
        if state.size:
            self._states[1, acting] = state[acting]
        if not self._even:
            starts = self._columns[acting][self._steps[acting] == 0]
            self._states[0, starts], self._weights[starts] = state[starts], 1.0
        self._acted = True

    def replace_actions(self, chosen: Mask, actions: npt.NDArray[Any]) -> None:
        """Replace the open actions by `actions` [N, ...] where `chosen`, bool [N]. Call it before `outcome`."""
        at = self._steps[chosen], self._columns[chosen]
        self._actions[at], self._chosen[at], self._has_chosen = actions[chosen], True, True

    def outcome(self, step: StepResult, rewards: npt.NDArray[Any], gamma: float, final_values: Array | None) -> None:
        """Add the outcome of the actions, except in held rows. For the arguments see `rewards_and_discounts`."""
        at = (self._steps, self._columns) if self._even is None else self._even
        self._rewards[at], self._discounts[at] = rewards_and_discounts(step, rewards, gamma, final_values)
        self._steps += step.acted
        if self._even is not None and (count := step.env_steps):
            self._even = self._even + 1 if count == len(self._columns) else None
        self._held, self._acted = step.held, False

    def newest(self) -> npt.NDArray[Any]:
        """Return the inputs [N, ...] of the open actions."""
        newest: npt.NDArray[Any] = self._inputs[self._steps, self._columns]
        return newest

    def take(self, expected: Array | None = None) -> Trajectories:
        """Return copies of the complete steps, and start the next rollout with the open actions.

        `expected`: the values of the inputs after the steps, float32 [N, ...]; None if all actions after them are open.
        These values also follow the steps of shorter columns, with mask 0, reward 0 and discount 1. So a sum over the
        whole column bootstraps from them.
        """
        is_ready = self._ready()
        even = self._even is not None and bool(is_ready.all())
        ready: Any = slice(None) if even else np.flatnonzero(is_ready)
        lengths = self._steps[ready]
        count = int(lengths.max())

        def rows(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            """Return rows 0 to T. Row T has the actions after the steps."""
            taken: npt.NDArray[Any] = array[: count + 1, ready]
            if even:
                taken = taken.copy()  # of a view
            else:
                taken[-1] = array[lengths, ready]
            return taken

        values = rows(self._values)
        if expected is not None:
            values[-1] = expected[ready]
        rewards, discounts = self._rewards[:count, ready].copy(), self._discounts[:count, ready].copy()
        mask = np.ones(rewards.shape, np.float32)
        if not even:
            after = np.arange(count)[:, None] >= lengths  # the rows that are no complete steps
            values[:-1][after] = np.broadcast_to(values[-1], values[:-1].shape)[after]
            rewards[after], discounts[after], mask[after] = 0, 1, 0
        trajectories = Trajectories(
            inputs=rows(self._inputs),
            actions=rows(self._actions),
            values=values,
            restart=rows(self._restart),
            valid=rows(self._valid) if self._valid.size else None,
            rewards=rewards,
            discounts=discounts,
            mask=mask,
            states=self._states[:, ready].copy(),
            weights=self._weights[ready].copy(),
            log_probability=rows(self._log_probability) if self._log_probability.size else None,
            chosen=rows(self._chosen) if self._has_chosen else None,
        )
        held = self._held
        if self._acted or held is not None:
            is_open: Any = ready if held is None or self._acted else np.flatnonzero(is_ready & held)
            last: Any = count if even and self._acted else (self._steps[is_open], self._columns[is_open])
            for array in (self._inputs, self._actions, self._values, self._restart, self._valid, self._chosen):
                array[0, is_open] = array[last]
            if self._log_probability.size:
                self._log_probability[0, is_open] = self._log_probability[last]
            self._states[0, is_open] = self._states[1, is_open]
        self._weights[ready] = 1.0
        self._steps[ready] = 0
        self._even = None if self._steps.any() else 0
        return trajectories

    def batch(self, expected: Array | None, gae_lambda: float) -> Batch:
        """Return the batch of an actor-critic, and start the next rollout (see `take`)."""
        return self.take(expected).to_batch(None, gae_lambda)

    def begin_next(self, values: Array | None = None, weights: Array | None = None) -> None:
        """Set values and weights (see `Rollout.begin_next`) of the actions in row 0."""
        starts = self._steps == 0
        if values is not None:
            self._values[0, starts] = values[starts]
        if weights is not None:
            self._weights[starts] = weights[starts]

    def _ready(self) -> Mask:
        """Return which environments have steps for the batch, bool [N]."""
        ready: Mask = self._steps > 0
        return ready

    def _grow(self) -> None:
        """Double the capacity."""
        for name in (
            "_inputs",
            "_actions",
            "_values",
            "_restart",
            "_valid",
            "_rewards",
            "_discounts",
            "_log_probability",
            "_chosen",
        ):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
