"""A substitute for DeepMind Lab, which follows its documented Python API and checks the arguments.

A program imports it under the real name if this folder is on its path. The level is a corridor: moving forward gives 1
per frame, and an episode ends after `EPISODE_FRAMES` frames. All pixels of a frame are the number of the frame.
"""

from __future__ import annotations

from typing import Any

import numpy as np

EPISODE_FRAMES = 10
LEVEL = "corridor"
SPEC = [
    {"name": "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", "min": -512, "max": 512},
    {"name": "LOOK_DOWN_UP_PIXELS_PER_FRAME", "min": -512, "max": 512},
    {"name": "STRAFE_LEFT_RIGHT", "min": -1, "max": 1},
    {"name": "MOVE_BACK_FORWARD", "min": -1, "max": 1},
    {"name": "FIRE", "min": 0, "max": 1},
    {"name": "JUMP", "min": 0, "max": 1},
    {"name": "CROUCH", "min": 0, "max": 1},
]


class Lab:
    def __init__(
        self, level: str, observations: list[str], config: dict[str, str] | None = None, renderer: str = "software"
    ) -> None:
        config = config or {}
        assert all(isinstance(value, str) for value in config.values())
        assert observations == ["RGB_INTERLEAVED"]
        assert renderer in ("software", "hardware")
        if level != LEVEL:
            raise RuntimeError(f"Level not found: {level}")
        self._shape = (int(config.get("height", "240")), int(config.get("width", "320")), 3)
        self._frames = EPISODE_FRAMES  # not running before the first reset
        self.seeds: list[int | None] = []
        self.actions: list[list[int]] = []
        self.is_closed = False

    def action_spec(self) -> list[dict[str, Any]]:
        return SPEC

    def reset(self, episode: int = -1, seed: int | None = None) -> None:
        assert not self.is_closed
        assert seed is None or (type(seed) is int and 0 <= seed < 2**31)
        self.seeds.append(seed)
        self._frames = 0

    def is_running(self) -> bool:
        return not self.is_closed and self._frames < EPISODE_FRAMES

    def num_steps(self) -> int:
        return self._frames

    def step(self, action: Any, num_steps: int = 1) -> float:
        if not self.is_running():
            raise RuntimeError("The environment is not running: it needs a reset")
        assert action.dtype == np.intc
        assert action.shape == (len(SPEC),)
        for value, control in zip(action, SPEC, strict=True):
            assert control["min"] <= value <= control["max"]
        self.actions.append(action.tolist())
        done = min(num_steps, EPISODE_FRAMES - self._frames)
        self._frames += done
        return float(done * action[3])

    def observations(self) -> dict[str, Any]:
        if not self.is_running():
            raise RuntimeError("The environment is not running: it has no observations")
        return {"RGB_INTERLEAVED": np.full(self._shape, self._frames, np.uint8)}

    def close(self) -> None:
        self.is_closed = True
