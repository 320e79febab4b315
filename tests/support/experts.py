"""Wrappers of gymnasium in which a scripted expert plays: `experts.py HOST:PORT NAME EPISODES SEED`.

They put the action into `infos["taken_action"]`.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np

from relaax.client import run
from support.maze import Maze
from support.takeover import CartPoleExpert


class MountainCarExpert(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A car that turns at two curves of place and speed; about -105 (Xiao 2019, "Reinforcement Learning")."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        place, speed = self.env.unwrapped.state  # type: ignore[attr-defined]
        low = min(-0.09 * (place + 0.25) ** 2 + 0.03, 0.3 * (place + 0.9) ** 4 - 0.008)
        taken = 2 if low < speed < -0.07 * (place + 0.38) ** 2 + 0.07 else 0
        state, reward, terminated, truncated, infos = self.env.step(taken)
        return state, reward, terminated, truncated, {**infos, "taken_action": taken}


class MazeExpert(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A walker on the shortest way."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        maze = self.env.unwrapped
        assert isinstance(maze, Maze)
        taken = maze.best_action()
        state, reward, terminated, truncated, infos = self.env.step(taken)
        return state, reward, terminated, truncated, {**infos, "taken_action": taken}


def expert(name: str, seed: int) -> gymnasium.Env[Any, Any]:
    """Return an environment that an expert plays."""
    if name == "cartpole":
        return CartPoleExpert(gymnasium.make("CartPole-v1"), share=1.0, steps=10**9, length=10**9)
    if name == "mountaincar":
        return MountainCarExpert(gymnasium.make("MountainCar-v0"))
    assert name == "maze"
    return MazeExpert(Maze())


def main() -> None:
    """Play episodes against the server at the address."""
    address, name, episodes, seed = sys.argv[1:]
    np.random.seed(int(seed))
    run(expert(name, int(seed)), address, episodes=int(episodes), seed=int(seed), taken_action="taken_action")


if __name__ == "__main__":
    main()
