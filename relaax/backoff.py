"""The pauses between attempts to reach a server."""

from __future__ import annotations

import random
from collections.abc import Callable


class Pauses:
    """Pauses that double from `first` to `longest` seconds.

    Each pause is random, from half to all of its length, so that clients of a restarted server do not reconnect all at
    once.
    """

    def __init__(self, first: float, longest: float, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._first, self._longest, self._uniform = first, longest, uniform
        self._count = 0

    def next(self) -> float:
        """Return the seconds to wait after one more failure."""
        pause = min(self._longest, self._first * 2.0 ** min(self._count, 16)) * self._uniform(0.5, 1.0)
        self._count += 1
        return pause

    def reset(self) -> None:
        """Restart from the first pause, after an attempt has succeeded."""
        self._count = 0
