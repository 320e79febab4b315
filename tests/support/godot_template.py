"""A task with the spaces of the template of Godot RL Agents: real numbers, and a choice of two."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple


class Collector(gymnasium.Env[Any, Any]):
    """Walk to coins on a floor. A coin gives 1 if the choice at the touch is its kind; else it is lost.

    Parts are in the order of their names in the template: `example_actions_continous`, `example_actions_discrete`.
    """

    observation_space = Dict({"obs": Box(-1, 1, (5,))})  # place, way to the coin / 2, kind of the coin
    action_space = Tuple([Box(-1, 1, (2,)), Discrete(2)])

    steps, reach, speed = 50, 0.2, 0.2

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._place = self.np_random.uniform(-1, 1, 2)
        self._renew()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        move, choice = action
        self._place = np.clip(self._place + self.speed * move, -1, 1)
        touched = np.linalg.norm(self._coin - self._place) < self.reach
        reward = float(touched and choice == self._kind)
        if touched:
            self._renew()
        return self._observe(), reward, False, self._steps >= self.steps, {}

    def _renew(self) -> None:
        self._coin, self._kind = self.np_random.uniform(-1, 1, 2), self.np_random.integers(2)

    def _observe(self) -> Any:
        way = (self._coin - self._place) / 2
        return {"obs": np.concatenate([self._place, way, [self._kind]]).astype(np.float32)}
