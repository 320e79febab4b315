#!/usr/bin/env python3
"""Run worlds of `World` against an RLX server: `main HOST:PORT NAME [N]`.

It needs relaax.client and numpy, and nothing else. N worlds share one connection.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from relaax.client import Box, Discrete, RunSummary, Worlds, command, run

STEPS = 100  # of an episode at most


class World:
    """A sledge on a rail is to be brought to a mark and kept there.

    Put your own simulator in the place of this class. What the rest of this file needs of it are the two spaces,
    `restart` and `do`. Spaces, and what values of them look like, are those of gymnasium: Box, Discrete, MultiBinary,
    Tuple, Dict. Where actions are a Box of real numbers, the algorithm in the YAML file is da3c_cont.
    """

    observation_space = Box(-2, 2, shape=(2,))  # distance from the mark, speed
    action_space = Discrete(3)  # push to the left, let it slide, push to the right

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def restart(self) -> Any:
        """Begin an episode; its first observation. Here a simulator would be reset, a game started, a robot homed."""
        self._steps = 0
        self._distance = self._rng.uniform(-0.8, 0.8)
        self._speed = 0.0
        return self._observe()

    def do(self, action: int) -> tuple[Any, float, bool, bool]:
        """Carry out an action: the observation after it, its reward, and whether the episode is over or cut off.

        Over (terminated) is what ends by the task's own rule: nothing would follow, and what could have been is worth
        nothing. Cut off (truncated) is what would go on, were it not for a limit from outside. Agents learn different
        things from the two.
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
    """Make the worlds and let the agents behind the port act in them, until there was enough of it."""
    settings = command.settings(arguments)
    worlds = Worlds(World, arguments.environments, arguments.seed)
    return run(worlds, environment=arguments.name, **settings)


if __name__ == "__main__":
    command.execute(command.parser("docking/main", "A sledge that is to dock.", "a name for the logs"), main)
