"""How well training goes: the mean return of the last episodes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any


class EpisodeReturns:
    """Returns of the last `window` episodes, their mean, and the best such mean. Not thread-safe."""

    def __init__(self, window: int = 100) -> None:
        self._last: deque[float] = deque(maxlen=window)
        self.episodes = 0
        self.best: float | None = None

    def add(self, episode_return: float) -> None:
        """An episode ended."""
        self._last.append(episode_return)
        self.episodes += 1
        if len(self._last) == self._last.maxlen:
            mean = self.mean
            assert mean is not None
            self.best = mean if self.best is None else max(self.best, mean)

    @property
    def mean(self) -> float | None:
        """Mean over the window, or over fewer episodes at the beginning; None before the first."""
        return math.fsum(self._last) / len(self._last) if self._last else None

    def as_json(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        return {"episodes": self.episodes, "last": list(self._last), "best": self.best}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `as_json` gave."""
        self.episodes = int(state["episodes"])
        self._last.clear()
        self._last.extend(float(value) for value in state["last"])
        self.best = None if state["best"] is None else float(state["best"])
