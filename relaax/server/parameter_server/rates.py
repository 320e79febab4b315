"""Steps and updates per second, from counters read now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


class Rates:
    """Turns counters into rates: their growth between two calls, over the seconds between."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[float, dict[str, int]] | None = None

    def __call__(self, counters: Mapping[str, int]) -> dict[str, float]:
        """Return the rates by the counters' names; empty at the first call."""
        now, last = self._clock(), self._last
        self._last = (now, dict(counters))
        if last is None or now <= last[0]:
            return {}
        before, old = last
        return {name: (value - old.get(name, 0)) / (now - before) for name, value in counters.items()}
