"""A wrapper that ends an Atari episode with each life while the game continues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from relaax.client import Episode

SCORE, LENGTH = "game_score", "game_length"


class LifeLoss(gymnasium.Wrapper):
    """A wrapper that ends an episode when a life is lost, and continues the game in the next episode.

    gymnasium's own preprocessing begins a new game after each life. When a game is over, `info` holds its whole score
    and its length in steps.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._lives = 0
        self._over = True
        self._score, self._length = 0.0, 0
        self._last: tuple[Any, dict[str, Any]] = None, {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if not self._over and seed is None:
            return self._last
        self._score, self._length, self._over = 0.0, 0, False
        observation, info = self.env.reset(seed=seed, options=options)
        self._lives = self._lives_left()
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        reward = float(reward)
        self._score += reward
        self._length += 1
        self._over = bool(terminated or truncated)
        if self._over:
            info = {**info, SCORE: self._score, LENGTH: self._length}
        lives = self._lives_left()
        lost, self._lives = lives < self._lives, lives
        self._last = observation, info
        return observation, reward, bool(terminated or lost), bool(truncated), info

    def _lives_left(self) -> int:
        ale: Any = self.unwrapped
        return int(ale.ale.lives())


def whole_games(infos: dict[str, Any]) -> Sequence[Episode]:
    """Return the games that ended with a step of a SAME_STEP vector of `LifeLoss`."""
    ended = infos.get("final_info", {})
    if SCORE not in ended:
        return ()
    return [
        Episode(int(index), float(ended[SCORE][index]), int(ended[LENGTH][index]))
        for index in np.flatnonzero(ended[f"_{SCORE}"])
    ]
