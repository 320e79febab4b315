"""Waits between attempts, and the decision to give up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from relaax.backoff import Pauses
from relaax.client.connection.failure import ConnectionInterrupted, Failure

FIRST_WAIT = 0.1
LONGEST_WAIT = 10.0


class Backoff:
    """Exponential waits with jitter between attempts, from the first failure until an attempt succeeds.

    A wait is drawn from the upper half of [0, 0.1 s x 2^failures], at most 10 s, so that the clients of a server that
    died do not reconnect all at once. If a server requests a longer wait, that wait is used. If there are several
    servers, all are tried before a wait, and the shortest requested wait is used.
    """

    def __init__(
        self,
        give_up_after: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        if give_up_after is not None and not give_up_after >= 0:
            raise ValueError(f"retry_seconds is {give_up_after}: it must be at least 0, or None to retry forever")
        self._give_up_after = give_up_after
        self._clock = clock
        self._sleep = sleep
        self._uniform = uniform
        self._pauses = Pauses(FIRST_WAIT, LONGEST_WAIT, uniform)
        self._since: float | None = None
        self._asked: float | None = None  # shortest wait that a server has requested since the last wait
        self._wait = 0.0

    def succeeded(self) -> None:
        """Reset the failures, because the server has answered."""
        self._pauses.reset()
        self._since = self._asked = None
        self._wait = 0.0

    def failed(self, reason: ConnectionInterrupted, *, elsewhere: bool = False) -> float:
        """Record a failure, and return the seconds that `wait` will take. Raises Failure after `give_up_after`.

        `elsewhere`: whether another server is tried next.
        """
        now = self._clock()
        self._since = now if self._since is None else self._since
        asked = reason.retry_after if self._asked is None else min(self._asked, reason.retry_after)
        self._asked = asked if elsewhere else None
        wait = 0.0 if elsewhere else self._pauses.next()
        if asked > 0 and not elsewhere:
            wait = max(wait, asked * self._uniform(1.0, 1.2))
        if self._give_up_after is not None:
            left = self._since + self._give_up_after - now
            if left <= 0 or (asked > left and not elsewhere):
                self.succeeded()
                raise Failure(f"{reason}; gave up after {self._give_up_after:g} s of trying", reason.code)
            wait = min(wait, left)
        self._wait = wait
        return wait

    def wait(self) -> None:
        """Sleep for the time that the last `failed` returned; do not sleep if there was no failure."""
        wait, self._wait = self._wait, 0.0
        if wait > 0:
            self._sleep(wait)
