"""Training progress: the mean return of the last episodes."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from relaax.metrics.rate_limited_log import RateLimitedLog
from relaax.rlx.messages import MAX_NUMBER

_log = logging.getLogger(__name__)


class RecentReturns:
    """Returns of the last `window` episodes, their mean, and the best such mean. Not thread-safe.

    A return beyond RLX's bound is ignored, so that every mean is finite; a warning is logged once a minute.
    """

    def __init__(self, window: int = 100) -> None:
        self._last: deque[float] = deque(maxlen=window)
        self._complain = RateLimitedLog(_log)
        self.episodes = 0
        self.best: float | None = None

    def add(self, episode_return: float) -> None:
        """Add the return of a finished episode."""
        self.episodes += 1
        if not is_return(episode_return):
            self._complain("an episode's return of %g is left out of the metrics", episode_return)
            return
        self._last.append(episode_return)
        if len(self._last) == self._last.maxlen:
            mean = self.mean
            assert mean is not None
            self.best = mean if self.best is None else max(self.best, mean)

    @property
    def mean(self) -> float | None:
        """The mean over the window, or over fewer episodes at the beginning; None before the first."""
        return math.fsum(self._last) / len(self._last) if self._last else None

    def as_json(self) -> dict[str, Any]:
        """Return the whole state, for a checkpoint."""
        return {"episodes": self.episodes, "last": list(self._last), "best": self.best}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `as_json`. State of older versions may hold returns that are now out of bounds."""
        last = [float(value) for value in state["last"]]
        best = None if state["best"] is None else float(state["best"])
        kept = [value for value in last if is_return(value)]
        self.episodes = int(state["episodes"])
        self._last.clear()
        self._last.extend(kept)
        self.best = best if best is None or is_return(best) else None
        if len(kept) < len(last) or self.best != best:
            _log.warning(
                "the checkpoint contains returns beyond %g: %d of the last %d are dropped, the best mean return is %s",
                MAX_NUMBER,
                len(last) - len(kept),
                len(last),
                "unknown" if self.best is None else "kept",
            )


def is_return(number: float) -> bool:
    """Return whether `number` is within RLX's bound (see `relaax.rlx.messages.MAX_NUMBER`)."""
    return abs(number) <= MAX_NUMBER  # False for NaN
