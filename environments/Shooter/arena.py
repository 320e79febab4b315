"""The game: walk, aim, and shoot at a target that drifts. N arenas are computed at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.client import Box, Dict, Discrete

STEPS = 100
"""Steps of an episode."""
SPEED, DRIFT = 0.1, 0.02
"""Longest way of the player along an axis, and way of the target, in a step. The arena's coordinates are -1 to 1."""
NEAR, FAR, RADIUS = 0.1, 0.6, 0.12
"""A shot hits a target of this radius from `NEAR` to `FAR` ahead."""
APART = 0.3
"""Least distance between the player and a new target."""
SIDE = 256
"""Width and height of the picture."""

Array = npt.NDArray[Any]


class Arenas:
    """A vector of N arenas with one player and one target each. A hit with ammunition of the target's color gives 1.

    Each hit, also with the wrong ammunition, replaces the target by a new one. An episode is truncated after `STEPS`.
    """

    single_observation_space = Dict(
        {
            "see": Box(-2, 2, shape=(6,)),  # own place, way to the target, direction of its drift
            "blue": Discrete(2),
        }
    )
    single_action_space = Dict(
        {
            "move": Box(-1, 1, shape=(2,)),
            "aim": Box(-1, 1, shape=(2,)),  # its direction counts, not its length
            "shoot": Discrete(2),  # with red or with blue ammunition
        }
    )
    autoreset_mode = "disabled"  # `reset` with a mask starts the next episodes

    def __init__(self, count: int, seed: int | None = None) -> None:
        self.num_envs = count
        self.metadata = {"render_fps": 10}
        self._rng = np.random.default_rng(seed)
        self._place, self._target, self._drift, self._aim = np.zeros((4, count, 2))
        self._blue, self._steps = np.zeros((2, count), np.int64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in each arena, or only where `options["reset_mask"]` (bool [N]) is true."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        where = np.ones(self.num_envs, np.bool_) if options is None else options["reset_mask"]
        self._place[where] = self._rng.uniform(-1, 1, (np.count_nonzero(where), 2))
        self._steps[where] = 0
        self._renew(where)
        return self._observe(), {}

    def step(self, actions: dict[str, Array]) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Walk, shoot, and let the targets drift. Return observations, rewards, terminated, truncated and infos."""
        self._steps += 1
        self._place = np.clip(self._place + SPEED * actions["move"], -1, 1)
        length = np.linalg.norm(actions["aim"], axis=1, keepdims=True)
        self._aim = np.where(length > 0, actions["aim"] / np.maximum(length, 1e-9), [1.0, 0.0])
        hits = _in_path(self._aim, self._target - self._place, RADIUS)
        rewards = (hits & (actions["shoot"] == self._blue)).astype(np.float64)
        self._renew(hits)
        self._drift = np.where(np.abs(self._target + DRIFT * self._drift) > 1, -self._drift, self._drift)
        self._target = self._target + DRIFT * self._drift
        return self._observe(), rewards, np.zeros_like(hits), self._steps >= STEPS, {}

    def render(self) -> npt.NDArray[np.uint8]:
        """Return a picture of the first arena, uint8 [SIDE, SIDE, 3]: target, player (black) and shot (grey)."""
        up, right = np.mgrid[1 : -1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
        points = np.stack([right, up], axis=-1)
        picture = np.full((SIDE, SIDE, 3), 255, np.uint8)
        if self._steps[0]:
            picture[_in_path(self._aim[0], points - self._place[0], 0.01)] = 128
        color = (40, 80, 220) if self._blue[0] else (220, 40, 40)
        picture[np.linalg.norm(points - self._target[0], axis=-1) < RADIUS] = color
        picture[np.linalg.norm(points - self._place[0], axis=-1) < 0.04] = 0
        return picture

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _renew(self, where: Array) -> None:
        """Make new targets in these arenas (bool [N])."""
        angle = self._rng.uniform(0, 2 * math.pi, self.num_envs)
        self._drift[where] = np.stack([np.cos(angle), np.sin(angle)], axis=1)[where]
        self._blue[where] = self._rng.integers(0, 2, self.num_envs)[where]
        while where.any():
            self._target[where] = self._rng.uniform(-1, 1, (self.num_envs, 2))[where]
            where = where & (np.linalg.norm(self._target - self._place, axis=1) < APART)

    def _observe(self) -> dict[str, Array]:
        parts = [self._place, self._target - self._place, self._drift]
        return {"see": np.concatenate(parts, axis=1).astype(np.float32), "blue": self._blue.copy()}


def _in_path(direction: Array, points: Array, radius: float) -> Array:
    """Return whether a shot in this direction ([..., 2], of length 1) passes these points within its reach."""
    ahead = (direction * points).sum(axis=-1)
    aside = direction[..., 0] * points[..., 1] - direction[..., 1] * points[..., 0]
    hit: Array = (ahead >= NEAR) & (ahead <= FAR) & (np.abs(aside) <= radius)
    return hit
