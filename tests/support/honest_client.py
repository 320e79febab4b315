"""A process of an honest client: `honest_client.py HOST:PORT RATE FILE`.

It plays CartPole with at most RATE steps per second, and writes its measurements to FILE.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import gymnasium

from relaax.client import run


class Paced(gymnasium.Wrapper):  # type: ignore[type-arg]
    """An environment whose steps take time, as in a slow simulator."""

    def __init__(self, env: Any, rate: float) -> None:
        super().__init__(env)
        self._seconds = 1.0 / rate
        self._due = time.monotonic()

    def step(self, action: Any) -> Any:
        now = time.monotonic()
        time.sleep(max(0.0, self._due - now))
        self._due = max(now, self._due) + self._seconds
        return self.env.step(action)


if __name__ == "__main__":
    address, rate, file = sys.argv[1:]
    env = Paced(gymnasium.make("CartPole-v1"), float(rate))
    run(env, address, environment="CartPole-v1", measure=file, retry_seconds=60.0)
