"""A limit on calls that wait in a server, so that threads stay free for other calls."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

LONGEST_WAIT = 1.0
"""Maximum seconds for which a call waits for other callers. Then it is answered, and repeated."""
MAX_WAITING_CALLS = 24
"""Default maximum number of calls that wait at the same time. Further calls return at once, and their callers retry."""


class WaitSlots:
    """Slots of calls that wait: at most `count` at the same time."""

    def __init__(self, count: int = MAX_WAITING_CALLS) -> None:
        self._slots = threading.BoundedSemaphore(count)

    @contextlib.contextmanager
    def acquire(self, wait: float) -> Iterator[float]:
        """Acquire a slot; yield the seconds for which the call may wait, 0 if no slot is free."""
        acquired = wait > 0 and self._slots.acquire(blocking=False)
        try:
            yield min(wait, LONGEST_WAIT) if acquired else 0.0
        finally:
            if acquired:
                self._slots.release()
