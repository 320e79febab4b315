"""Gather scalars of the environment until a message is sent anyway."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping

from relaax import rlx
from relaax.rlx.messages import MAX_NUMBER
from relaax.rlx.metric_names import formed

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


GATHERED_AT_MOST = 256

NO_X = "x= of metrics().scalar is not used: metrics are drawn over the global step, which the server knows"

logger = logging.getLogger("relaax.client")


class Scalars:
    """What `client.metrics()` is: `scalar(name, value)` for numbers that appear under client/ in the metrics.

    They travel in front of the next message, and by themselves only if many were gathered before that.
    """

    def __init__(self, flush: Callable[[], None], own_names: Collection[str] = NAMES) -> None:
        """`own_names`: those that the client reports by itself. They have their places from the start."""
        self._flush = flush
        self._own = frozenset(own_names)
        self._limits = rlx.Limits()
        self._names: set[str] = set()
        self._formed: dict[str, str] = {}  # by the name as it was written
        self._told_of_x = False
        self._gathered: list[tuple[str, float]] = []

    def scalar(self, name: str, value: float, x: float | None = None) -> None:
        """Note a number of -10^30 to 10^30. Raises ValueError for what the protocol does not carry.

        `name`: as people write it; `act latency on client` appears as `client/act_latency_on_client` (see
        `relaax.rlx.metric_names`). `x`: the horizontal axis in RELAAX 0.1, taken and not used, of which the log warns
        once. The global step is the axis.
        """
        if x is not None and not self._told_of_x:
            self._told_of_x = True
            logger.warning("%s", NO_X)
        value = float(value)
        if not abs(value) <= MAX_NUMBER:
            raise ValueError(
                f"metric {name!r} is {value}: only numbers from {-MAX_NUMBER:g} to {MAX_NUMBER:g} can be sent"
            )
        name = self._formed.get(name) or self._noted(name)
        if name not in self._names:
            self._check(name)
        if len(self._gathered) >= GATHERED_AT_MOST:
            self._flush()
            del self._gathered[: len(self._gathered) + 1 - GATHERED_AT_MOST]  # no connection: the newest are kept
        self._gathered.append((name, value))

    def own(self, values: Mapping[str, float]) -> None:
        """Note the client's own metrics, if the server has room for more names."""
        if self._kept and all(map(self._fits, values)):
            self._gathered += values.items()

    def flush(self) -> None:
        """Send what was gathered now, without waiting for anything. Does nothing while there is no connection."""
        self._flush()

    def take(self) -> rlx.Metrics | None:
        """Return what was gathered, which is then forgotten; None if there is nothing."""
        if not self._gathered:
            return None
        gathered, self._gathered = self._gathered, []
        return rlx.Metrics(gathered)

    def limit(self, limits: rlx.Limits) -> None:
        """Note the server's limits; scalars beyond them are dropped rather than sent."""
        self._limits = limits
        fitting = dict.fromkeys(name for name, _ in self._gathered if self._fits(name) and name not in self._own)
        self._names = set(list(fitting)[: limits.max_metric_names - self._kept])
        self._gathered = [(name, value) for name, value in self._gathered if name in self._names]

    @property
    def _kept(self) -> int:
        """The places reserved for the client's own names; none if the server takes no more than those."""
        return len(self._own) if self._limits.max_metric_names > len(self._own) else 0

    def _fits(self, name: str) -> bool:
        return len(name) <= self._limits.max_metric_name_bytes

    def _noted(self, name: str) -> str:
        """Return a name in form, and keep it for the next time if there is room. Raises ValueError."""
        made = check_name(name)
        if len(self._formed) < self._limits.max_metric_names:
            self._formed[name] = made
        return made

    def _check(self, name: str) -> None:
        if not self._fits(name):
            raise ValueError(f"metric name {name!r} is longer than {self._limits.max_metric_name_bytes} characters")
        if len(self._names) >= self._limits.max_metric_names - self._kept:
            own = self._kept
            besides = f", {own} of them the client's own (report_latency=None leaves those to you)" if own else ""
            raise ValueError(
                f"metric {name!r} is one too many: the server takes {self._limits.max_metric_names} names{besides}"
            )
        self._names.add(name)


def check_name(name: str) -> str:
    """Return the form of `name`, which is valid for a metric. Raises ValueError."""
    if not name:
        raise ValueError("metric name '': a name is needed")
    made = formed(name)
    if made in NAMES:
        raise ValueError(f"metric name {name!r} is the client's own: choose another one")
    return made
