"""FrozenLake-v1 on a large map, without slipping. The server sets how far from the goal an episode starts."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

SIZE, MAP_SEED, FROZEN = 16, 3, 0.75
STEPS = 100
"""Steps after which an episode is cut off."""


class FarLake(FrozenLakeEnv):
    """A lake of 16 x 16. The option `distance` of reset is the number of steps from the start to the goal.

    Without it, or at its maximum, an episode starts in the corner, as in FrozenLake. The reward is 1 at the goal.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(desc=generate_random_map(SIZE, FROZEN, MAP_SEED), is_slippery=False, **kwargs)
        self._distances = self._steps_to_goal()
        self._steps = 0

    def _steps_to_goal(self) -> dict[int, int]:
        """Return the length of the shortest path to the goal, by state."""
        found, edge = {SIZE * SIZE - 1: 0}, [SIZE * SIZE - 1]
        for target in edge:
            for state, actions in self.P.items():
                if state not in found and any(outcome[0][1] == target for outcome in actions.values()):
                    found[state] = found[target] + 1
                    edge.append(state)
        return found

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        distance = round(min((options or {}).get("distance", np.inf), self._distances[0]))
        if distance < self._distances[0]:
            self.s = int(self.np_random.choice([s for s, steps in self._distances.items() if steps == distance]))
        return int(self.s), {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        state, reward, terminated, _, _ = super().step(action)
        self._steps += 1
        return int(state), float(reward), terminated, self._steps >= STEPS and not terminated, {}
