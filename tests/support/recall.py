"""A task that cannot be solved without a memory."""

from __future__ import annotations

import numpy as np

from relaax.algorithm_base import Box, Discrete, Leaves, Mask, StepResult

LENGTH = 4


class Recall:
    """N environments. A sign is shown at an episode's start and nothing after it; the last of four actions must be it.

    That is worth 1, and ends the episode; all else is worth 0. Who forgets is right every second time: 0.125 a step.
    Who remembers gets 0.25 a step. The observation is the sign (0 if none is shown) and the time. Episodes begin at
    different times, and every second environment ends them in the NEXT_STEP way: memory has to be cleared for each
    environment on its own.
    """

    observation_space = Box(-1, 1, shape=(2,))
    action_space = Discrete(2)

    def __init__(self, environments: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.environments = environments
        self._next_step = np.arange(environments) % 2 == 1
        self._void = np.zeros(environments, np.bool_)
        self._sign = np.zeros(environments, np.int64)
        self._time = np.zeros(environments, np.int64)

    def reset(self) -> Leaves:
        self._void = np.zeros(self.environments, np.bool_)
        self._begin(~self._void)
        self._time = self._rng.integers(0, 2, self.environments)  # some begin late, and have seen nothing
        return self._observe()

    def step(self, actions: Leaves) -> StepResult:
        first = self._void
        self._time += ~first
        over = (self._time == LENGTH) & ~first
        rewards = 1.0 * (over & (actions[0] == self._sign))
        final = self._observe()
        self._begin((over & ~self._next_step) | first)
        self._void = over & self._next_step
        return StepResult(rewards, self._observe(), over, np.zeros_like(over), first, final if over.any() else None)

    def _begin(self, where: Mask) -> None:
        self._sign = np.where(where, self._rng.integers(0, 2, self.environments), self._sign)
        self._time = np.where(where, 0, self._time)

    def _observe(self) -> Leaves:
        shown = np.where(self._time == 0, 2 * self._sign - 1, 0)
        return [np.stack([shown, self._time / LENGTH], axis=1).astype(np.float32)]
