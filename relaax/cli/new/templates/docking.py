#!/usr/bin/env python3
"""Run environments of class `World` against an RLX server: `main HOST:PORT NAME [N]`.

It needs only relaax.client and numpy. N environments share one connection.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from relaax.client import Box, Discrete, RunSummary, Worlds, command, run

STEPS = 100  # at most, per episode


class World:
    """A sledge on a rail that must reach a mark and stay there.

    Replace this class by your own simulator, and let `relaax check docking.yaml` play it before it is trained. The rest
    of this file uses the two spaces, `restart` and `do`. Spaces and their values are as in gymnasium: Box, Discrete,
    MultiBinary, MultiDiscrete, Tuple, Dict. If all actions are real numbers, try the algorithm da3c_cont, too.
    """

    observation_space = Box(-2, 2, shape=(2,))  # distance from the mark, speed
    action_space = Discrete(3)  # push to the left, let it slide, push to the right

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def restart(self) -> Any:
        """Begin an episode and return its first observation: reset a simulator, start a game, home a robot."""
        self._steps = 0
        self._distance = self._rng.uniform(-0.8, 0.8)
        self._speed = 0.0
        return self._observe()

    def do(self, action: int) -> tuple[Any, float, bool, bool]:
        """Carry out an action. Return the next observation, the reward, whether terminated, and whether truncated.

        Terminated: the task's own rule ends the episode, and the return beyond it is zero. Truncated: an external limit
        cuts the episode off, which would continue otherwise. Agents learn differently from the two.
        """
        self._steps += 1
        self._speed += 0.02 * (int(action) - 1)
        self._distance += self._speed
        terminated = abs(self._distance) > 1  # off the rail
        reward = 0.0 if terminated else 1 - abs(self._distance)
        return self._observe(), reward, terminated, self._steps >= STEPS

    def _observe(self) -> Any:
        return np.clip([self._distance, 10 * self._speed], -2, 2).astype(np.float32)


def main(arguments: argparse.Namespace) -> RunSummary:
    """Make the environments, and let the server's agents act in them until training ends."""
    settings = command.settings(arguments)
    worlds = Worlds(World, arguments.environments, arguments.seed)
    return run(worlds, environment=arguments.name, **settings)


if __name__ == "__main__":
    command.execute(command.parser("docking/main", "A sledge that must dock.", "a name for the logs"), main)
