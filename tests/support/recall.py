"""A task that cannot be solved without a memory."""

from __future__ import annotations

import numpy as np

from relaax.algorithm_base import Box, Discrete, Leaves, Mask, StepResult

LENGTH = 4


class Recall:
    """N environments that show a sign only at an episode's start. The last of four actions must be equal to it.

    A correct last action has reward 1, all other actions 0. The last action ends the episode. An agent without memory
    gets a mean of 0.125 a step, an agent with memory 0.25. The observation is the sign (0 if it is not shown) and the
    time. Episodes start at different times, and every second environment uses NEXT_STEP autoreset, so the memory of
    each environment must be cleared separately.
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
        self._time = self._rng.integers(0, 2, self.environments)  # some start late and do not show the sign
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
