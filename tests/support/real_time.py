"""A wrapper for `--wrapper` that makes an environment run in real time, as a robot or a game does."""

from __future__ import annotations

import sys
import time
from typing import Any

import gymnasium


class RealTime(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that limits an environment to `rate` steps and resets per second. Evaluation is not limited.

    A late step does not make the next step earlier.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], rate: float) -> None:
        super().__init__(env)
        self._seconds = 0.0 if "relaax.evaluation.program" in sys.modules else 1 / rate
        self._due = time.monotonic()

    def reset(self, **options: Any) -> Any:
        self._wait()
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self._wait()
        return super().step(action)

    def _wait(self) -> None:
        now = time.monotonic()
        if now < self._due:
            time.sleep(self._due - now)
        self._due = max(self._due, now) + self._seconds
