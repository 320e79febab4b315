"""A task with action masks: ways through a hundred towns, with ten roads from each."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

TOWNS, ROADS = 100, 10


class Roads(gymnasium.Env[Any, Any]):
    """Travel to town 0. An action is the number of a road. If the town has no road of this number, the step is lost.

    The reward is 1 on arrival, and -0.02 in each other step. An episode starts in any other town, and is truncated
    after 50 steps. All instances have the same roads.
    """

    observation_space = Dict({"town": Discrete(TOWNS), "action_mask": Box(0, 1, (TOWNS,), np.int8)})
    action_space = Discrete(TOWNS)  # the numbers are 0 to 99

    steps = 50
    numbers, targets = np.random.default_rng(1).permuted(np.tile(np.arange(TOWNS), (2, TOWNS, 1)), axis=2)[..., :ROADS]
    """[TOWNS, ROADS] each: the numbers of a town's roads, and where they lead."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._town = int(self.np_random.integers(1, TOWNS))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        (road,) = np.nonzero(self.numbers[self._town] == action)
        if road.size:
            self._town = int(self.targets[self._town, road[0]])
        arrived = self._town == 0
        return self._observe(), 1.0 if arrived else -0.02, arrived, self._steps == self.steps, {}

    def _observe(self) -> dict[str, Any]:
        mask = np.zeros(TOWNS, np.int8)
        mask[self.numbers[self._town]] = 1
        return {"town": self._town, "action_mask": mask}


def best_mean_return() -> float:
    """Return the mean return of the shortest ways."""
    distances = np.full(TOWNS, TOWNS)
    distances[0] = 0
    for _ in range(TOWNS):
        distances = np.minimum(distances, distances[Roads.targets].min(axis=1) + 1)
    return float(np.mean(1 - 0.02 * (distances[1:] - 1)))
