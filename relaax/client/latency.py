"""Measure how long the server's answers take, as the client sees it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

ACT, PING, WITHOUT_NETWORK = "latency/act_ms", "latency/ping_ms", "latency/act_without_network_ms"
NAMES = frozenset((ACT, PING, WITHOUT_NETWORK))

_PINGS = 5


class Latency:
    """Sums up latencies and reports them every `interval` seconds; never if that is None.

    The network's part is the least of the last few pings: where an agent is still learning when one arrives, its echo
    waits. A ping travels in front of a step and costs no round trip of its own.
    """

    def __init__(self, interval: float | None, clock: Callable[[], float] = time.perf_counter) -> None:
        if interval is not None and not interval > 0:
            raise ValueError(f"report_latency is {interval}: give a number of seconds, or None for no reports")
        self.clock = clock
        self._interval = interval
        self._since = clock()
        self._total, self._count = 0.0, 0
        self._pings: deque[float] = deque(maxlen=_PINGS)

    @property
    def names(self) -> frozenset[str]:
        """The names of the reported metrics; none if nothing is reported."""
        return frozenset() if self._interval is None else NAMES

    def is_due(self, now: float) -> bool:
        """Return whether it is time for a ping and a report."""
        return self._interval is not None and now - self._since >= self._interval

    def add(self, seconds: float) -> None:
        """Add the time of an answer."""
        self._total += seconds
        self._count += 1

    def pinged(self, seconds: float) -> None:
        """Add the time of a ping and its echo."""
        self._pings.append(seconds)

    def report(self, now: float) -> dict[str, float]:
        """Return metrics since the last report, in milliseconds; nothing if there was no answer."""
        total, count = self._total, self._count
        self._since, self._total, self._count = now, 0.0, 0
        if not count:
            return {}
        act = 1e3 * total / count
        if not self._pings:
            return {ACT: act}
        network = 1e3 * min(self._pings)
        return {ACT: act, PING: network, WITHOUT_NETWORK: max(0.0, act - network)}
