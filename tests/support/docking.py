"""A continuous control task with unusual units and bounds: move a point to the middle."""

from __future__ import annotations

import numpy as np

from relaax.algorithm_base import Box, Leaves, Mask, StepResult


class Docking:
    """N environments with a position x in [-1, 1]. Each step costs x^2.

    The action, a thrust from 0 to 4, moves x by (thrust - 3) / 4. Thrust 3 has no effect, and the middle of the bounds
    moves x by -0.25 per step. The observation is 500 + 20 x and a constant. If `hidden`, x is visible only in the first
    step of an episode, so the agent needs a memory of x and of its actions. Episodes are truncated after 8 steps.
    Environments of odd index use Autoreset.NEXT_STEP, the others SAME_STEP.

    Thrust 3 at every step costs 1/3 per step. The best policy costs 0.012 per step, because half of the episodes begin
    at x < 0. Such an episode of 8 steps costs the sum over k = 1, 2, 3 of (1 - k/4)^3 / 3, which is 0.19. The other
    episodes cost almost nothing.
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
        visible = np.where(self._time > 0, 0.0, self._x) if self._hidden else self._x
        return [np.stack([500 + 20 * visible, np.full_like(visible, 7.0)], axis=1).astype(np.float32)]
