"""A continuous task in which the middle must be found, with units and bounds that are nobody's."""

from __future__ import annotations

import numpy as np

from relaax.algorithm_base import Box, Leaves, Mask, StepResult


class Docking:
    """N environments. A place x in [-1, 1] is moved by a thrust; every step costs x^2.

    The thrust is from 0 to 4 and moves x by (thrust - 3) / 4, so no force is 3, and the middle of the bounds drives x
    down at -0.25 a step. The observation is 500 + 20 x and a number that never changes; where `hidden`, x is seen in an
    episode's first step only, and must be remembered together with what was done since. Episodes last 8 steps and are
    then cut off, in environments of odd number in the NEXT_STEP way.

    Doing nothing costs 1/3 a step. To drive straight to 0 costs 0.012: almost nothing from x > 0, but from x < 0 it is
    the sum over k of (1 - k/4)^3 / 3 an episode, 0.19, in half of the episodes of 8 steps.
    """

    observation_space = Box(shape=(2,))
    action_space = Box(0, 4, shape=(1,))
    length = 8

    def __init__(self, environments: int, seed: int, hidden: bool = False) -> None:
        self._rng = np.random.default_rng(seed)
        self.environments = environments
        self._hidden = hidden
        self._next_step = np.arange(environments) % 2 == 1
        self._void = np.zeros(environments, np.bool_)
        self._x = np.zeros(environments)
        self._time = np.zeros(environments, np.int64)

    def reset(self) -> Leaves:
        self._void = np.zeros(self.environments, np.bool_)
        self._begin(~self._void)
        return self._observe()

    def step(self, actions: Leaves) -> StepResult:
        first = self._void
        self._x = np.where(first, self._x, np.clip(self._x + (actions[0][:, 0] - 3) / 4, -1, 1))
        self._time += ~first
        over = (self._time == self.length) & ~first
        rewards = -np.square(self._x)
        final = self._observe()
        self._begin((over & ~self._next_step) | first)
        self._void = over & self._next_step
        return StepResult(rewards, self._observe(), np.zeros_like(over), over, first, final if over.any() else None)

    def _begin(self, where: Mask) -> None:
        self._x = np.where(where, self._rng.uniform(-1, 1, self.environments), self._x)
        self._time = np.where(where, 0, self._time)

    def _observe(self) -> Leaves:
        seen = np.where(self._time > 0, 0.0, self._x) if self._hidden else self._x
        return [np.stack([500 + 20 * seen, np.full_like(seen, 7.0)], axis=1).astype(np.float32)]
