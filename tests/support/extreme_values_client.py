"""A client that follows the protocol and sends extreme numbers: `extreme_values_client.py HOST:PORT RATE`."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

from relaax.client import run

OBSERVATION = 3.4e38
REWARD = 1e15
EPISODE = 10  # steps


class ExtremeValues(gymnasium.Env[Any, Any]):
    """An environment with the spaces of CartPole, and extreme observations and rewards."""

    def __init__(self) -> None:
        cartpole = CartPoleEnv()
        self.observation_space, self.action_space = cartpole.observation_space, cartpole.action_space
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return np.full(4, OBSERVATION, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return np.full(4, OBSERVATION, np.float32), REWARD, self._steps == EPISODE, False, {}


if __name__ == "__main__":
    address, rate = sys.argv[1:]
    run(ExtremeValues(), address, environment="CartPole-v1", rate=float(rate), retry_seconds=60.0)
