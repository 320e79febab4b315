"""A maze of a grid: an agent that sees the walls around it and its own place looks for the exit."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

SIDE = 15
VIEW = 2
LIMIT = 200
"""Steps of an episode at most."""
MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))


class Maze(gymnasium.Env[npt.NDArray[np.float32], int]):
    """A maze without loops, the same in all episodes, with the start at random and the exit in a corner.

    Observation: float32 [(2 VIEW + 1)^2 + 2]: the walls around, and the place from 0 to 1. An action against a wall has
    no effect. The exit returns 1 - 0.8 t / LIMIT after t steps, as in MiniWorld; an episode without it returns 0.
    """

    def __init__(self) -> None:
        self.walls = carved(np.random.default_rng(7))
        self.exit = (SIDE - 2, SIDE - 2)
        self.distances = distances_to(self.exit, self.walls)
        self.observation_space = gymnasium.spaces.Box(0, 1, ((2 * VIEW + 1) ** 2 + 2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)  # type: ignore[assignment]
        self._place = self.exit
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        free = np.argwhere(self.distances > 0)
        self._steps = 0
        self._place = tuple(self.np_random.choice(free).tolist())
        return self._seen(), {}

    def step(self, action: int) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        there = self._after(action)
        if not self.walls[there]:
            self._place = there
        self._steps += 1
        is_out = self._place == self.exit
        reward = 1 - 0.8 * self._steps / LIMIT if is_out else 0.0
        return self._seen(), reward, is_out, not is_out and self._steps == LIMIT, {}

    def best_action(self) -> int:
        """Return an action on the shortest way to the exit."""
        ways = [self.distances[self._after(action)] for action in range(4)]
        return int(np.argmin([SIDE**2 if way < 0 else way for way in ways]))

    def _after(self, action: int) -> tuple[int, int]:
        down, right = MOVES[action]
        return self._place[0] + down, self._place[1] + right

    def _seen(self) -> npt.NDArray[np.float32]:
        row, column = (number + VIEW for number in self._place)
        around = np.pad(self.walls, VIEW, constant_values=True)
        view = around[row - VIEW : row + VIEW + 1, column - VIEW : column + VIEW + 1]
        return np.concatenate([view.ravel(), np.array(self._place) / SIDE]).astype(np.float32)


def carved(rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Return the walls of a maze without loops, bool [SIDE, SIDE], by a random walk that turns back at dead ends."""
    walls = np.ones((SIDE, SIDE), np.bool_)
    walls[1, 1] = False
    way = [(1, 1)]
    while way:
        row, column = way[-1]
        for down, right in rng.permutation(MOVES).tolist():
            there = row + 2 * down, column + 2 * right
            if min(there) > 0 and max(there) < SIDE and walls[there]:
                walls[row + down, column + right] = walls[there] = False
                way.append(there)
                break
        else:
            way.pop()
    return walls


def distances_to(place: tuple[int, int], walls: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the number of steps from each cell to a place, int64 [SIDE, SIDE]; -1 for walls."""
    found = np.full(walls.shape, -1, np.int64)
    found[place] = 0
    waiting = deque([place])
    while waiting:
        row, column = waiting.popleft()
        for down, right in MOVES:
            there = row + down, column + right
            if not walls[there] and found[there] < 0:
                found[there] = found[row, column] + 1
                waiting.append(there)
    return found
