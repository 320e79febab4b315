"""Decide when to retry and when to give up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from relaax.client.connection.failure import ConnectionInterrupted, Failure

FIRST_WAIT = 0.1
LONGEST_WAIT = 10.0


class Backoff:
    """Exponential waits with jitter between attempts, from the first failure until an attempt succeeds.

    A wait is drawn from the upper half of [0, 0.1 s x 2^failures], bounded by 10 s, so that the clients of a server
    that died do not come back all at once; a server that asks for a longer wait gets it. Of several servers all are
    tried before a wait, and the one that asks for the shortest decides.
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
            raise ValueError(f"retry_seconds is {give_up_after}: give a number of seconds, 0 or more, or None for ever")
        self._give_up_after = give_up_after
        self._clock = clock
        self._sleep = sleep
        self._uniform = uniform
        self._failures = 0
        self._since: float | None = None
        self._asked: float | None = None  # the shortest wait that a server asks for, since the last wait
        self._wait = 0.0

    def succeeded(self) -> None:
        """Forget the failures: the server has answered."""
        self._failures = 0
        self._since = self._asked = None
        self._wait = 0.0

    def failed(self, reason: ConnectionInterrupted, *, elsewhere: bool = False) -> float:
        """Note a failure; return the seconds that `wait` will take. Raises Failure if it is time to give up.

        `elsewhere`: another server is tried next.
        """
        now = self._clock()
        self._since = now if self._since is None else self._since
        asked = reason.retry_after if self._asked is None else min(self._asked, reason.retry_after)
        self._asked = asked if elsewhere else None
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(self._failures, 16)) * self._uniform(0.5, 1.0)
        if asked > 0:
            wait = max(wait, asked * self._uniform(1.0, 1.2))
        if elsewhere:
            wait = 0.0
        else:
            self._failures += 1
        if self._give_up_after is not None:
            left = self._since + self._give_up_after - now
            if left <= 0 or (asked > left and not elsewhere):
                self.succeeded()
                raise Failure(f"{reason}; gave up after {self._give_up_after:g} s of trying", reason.code)
            wait = min(wait, left)
        self._wait = wait
        return wait

    def wait(self) -> None:
        """Sleep as long as the last failure asks for; not at all if there was none."""
        wait, self._wait = self._wait, 0.0
        if wait > 0:
            self._sleep(wait)
