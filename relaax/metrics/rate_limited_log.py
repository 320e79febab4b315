"""Warnings that could repeat with every push or attempt, logged at most once a minute."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

MINUTE = 60.0


class RateLimitedLog:
    """A log for repeated warnings: at most one a minute, with the number of suppressed ones. Thread-safe."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._next = float("-inf")
        self._suppressed = 0
        self._lock = threading.Lock()

    def __call__(self, sentence: str, *more: object) -> None:
        """Log `sentence`, formatted with `more`, unless the last one is less than a minute ago."""
        with self._lock:
            now = self._clock()
            if now < self._next:
                self._suppressed += 1
                return
            self._next, suppressed, self._suppressed = now + MINUTE, self._suppressed, 0
        if suppressed:
            sentence, more = f"{sentence} (and %d like it in the last minute)", (*more, suppressed)
        self._log.warning(sentence, *more)


class OutageLog:
    """A log for failing attempts: the first failure, then at most one a minute, then the recovery. Not thread-safe."""

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
        """Log the recovery if there was an outage."""
        if self._warned is not None:
            self._log.info(sentence, *more)
        self._warned = None
