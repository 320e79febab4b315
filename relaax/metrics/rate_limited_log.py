"""Warnings that could repeat with every push or attempt, logged at most once a minute."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

MINUTE = 60.0


class RateLimitedLog:
    """Log a warning at once, then none for a minute; the next one counts those suppressed. Thread-safe."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._next = float("-inf")
        self._kept_back = 0
        self._lock = threading.Lock()

    def __call__(self, sentence: str, *more: object) -> None:
        """Log `sentence`, formatted with `more`, unless a minute has not passed."""
        with self._lock:
            now = self._clock()
            if now < self._next:
                self._kept_back += 1
                return
            self._next, kept_back, self._kept_back = now + MINUTE, self._kept_back, 0
        if kept_back:
            sentence, more = f"{sentence} (and %d like it in the last minute)", (*more, kept_back)
        self._log.warning(sentence, *more)


class OutageLog:
    """Log that attempts fail, at once and then once a minute, and that they succeed again. For one thread."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._warned: float | None = None

    def failed(self, sentence: str, *more: object) -> None:
        """Log a warning unless there was one within the last minute of this outage."""
        now = time.monotonic()
        if self._warned is None or now - self._warned >= MINUTE:
            self._log.warning(sentence, *more)
            self._warned = now

    def succeeded(self, sentence: str, *more: object) -> None:
        """Log this at the end of an outage."""
        if self._warned is not None:
            self._log.info(sentence, *more)
        self._warned = None
