"""A task with the spaces of the template of Godot RL Agents: real numbers, and a choice of two."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple


class Collector(gymnasium.Env[Any, Any]):
    """Collect coins on a floor: walk to a coin, then stand still and grab it. A coin gives 1.

    Parts are in the order of their names: `example_actions_continous` moves, `example_actions_discrete` grabs. An agent
    that grabs does not walk in this step. So an agent that always grabs, or never, gets almost nothing.
    """

    observation_space = Dict({"obs": Box(-1, 1, (4,))})  # place, way to the coin / 2
    action_space = Tuple([Box(-1, 1, (2,)), Discrete(2)])

    steps, reach, speed = 50, 0.2, 0.2

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._place = self.np_random.uniform(-1, 1, 2)
        self._coin = self.np_random.uniform(-1, 1, 2)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        move, grab = action
        reward = 0.0
        if not grab:
            self._place = np.clip(self._place + self.speed * move, -1, 1)
        elif np.linalg.norm(self._coin - self._place) < self.reach:
            reward = 1.0
            self._coin = self.np_random.uniform(-1, 1, 2)
        return self._observe(), reward, False, self._steps >= self.steps, {}

    def _observe(self) -> Any:
        return {"obs": np.concatenate([self._place, (self._coin - self._place) / 2]).astype(np.float32)}
