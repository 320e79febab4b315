"""Metrics that a client sends: scalars of the environment, and latencies that the client measures."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping

from relaax import rlx
from relaax.rlx.messages import MAX_NUMBER
from relaax.rlx.metric_names import normalize_name

ACT, PING, WITHOUT_NETWORK = "latency/act_ms", "latency/ping_ms", "latency/act_without_network_ms"
NAMES = frozenset((ACT, PING, WITHOUT_NETWORK))

_PINGS = 5


class Latency:
    """Latencies of answers, reported every `interval` seconds; never if `interval` is None.

    The minimum of the last few pings measures the network, because an echo is delayed while the agent trains. A ping is
    sent together with a step, so it costs no extra round trip.
    """

    def __init__(self, interval: float | None, clock: Callable[[], float] = time.perf_counter) -> None:
        if interval is not None and not interval > 0:
            raise ValueError(f"report_latency is {interval}: it must be above 0 (seconds), or None for no reports")
        self.clock = clock
        self._interval = interval
        self._since = clock()
        self._total, self._count = 0.0, 0
        self._pings: deque[float] = deque(maxlen=_PINGS)

    @property
    def names(self) -> frozenset[str]:
        """Names of the reported metrics; empty without reports."""
        return frozenset() if self._interval is None else NAMES

    def is_due(self, now: float) -> bool:
        """Return whether a ping and a report are due."""
        return self._interval is not None and now - self._since >= self._interval

    def add(self, seconds: float) -> None:
        """Add the latency of an answer."""
        self._total += seconds
        self._count += 1

    def add_ping(self, seconds: float) -> None:
        """Add the round-trip time of a ping."""
        self._pings.append(seconds)

    def report(self, now: float) -> dict[str, float]:
        """Return the metrics since the last report, in milliseconds; empty if there was no answer."""
        total, count = self._total, self._count
        self._since, self._total, self._count = now, 0.0, 0
        if not count:
            return {}
        act = 1e3 * total / count
        if not self._pings:
            return {ACT: act}
        network = 1e3 * min(self._pings)
        return {ACT: act, PING: network, WITHOUT_NETWORK: max(0.0, act - network)}


MAX_PENDING_SCALARS = 256

X_IGNORED = "the argument x of metrics().scalar is ignored: the horizontal axis of metrics is the global step"

logger = logging.getLogger("relaax.client")


class Scalars:
    """The recorder that `client.metrics()` returns. Its scalars appear under client/ in the metrics.

    Scalars are sent with the next message, or in a message of their own if MAX_PENDING_SCALARS are pending.
    """

    def __init__(self, flush: Callable[[], None], own_names: Collection[str] = NAMES) -> None:
        """`own_names`: names that the client itself reports. Their places are reserved from the start."""
        self._flush = flush
        self._own_names = frozenset(own_names)
        self._limits = rlx.Limits()
        self._names: set[str] = set()
        self._normalized: dict[str, str] = {}  # by the name that the caller wrote
        self._warned_of_x = False
        self._pending: list[tuple[str, float]] = []

    def scalar(self, name: str, value: float, x: float | None = None) -> None:
        """Record a number from -10^30 to 10^30. Raises ValueError for other numbers and invalid names.

        `name`: any text; `act latency on client` appears as `client/act_latency_on_client` (see
        `relaax.rlx.metric_names`). `x`: the horizontal axis in RELAAX 0.1; it is ignored with one warning, because the
        axis is the global step.
        """
        if x is not None and not self._warned_of_x:
            self._warned_of_x = True
            logger.warning("%s", X_IGNORED)
        value = float(value)
        if not abs(value) <= MAX_NUMBER:
            raise ValueError(
                f"metric {name!r} is {value}: only numbers from {-MAX_NUMBER:g} to {MAX_NUMBER:g} can be sent"
            )
        name = self._normalized.get(name) or self._normalize(name)
        if name not in self._names:
            self._check(name)
        if len(self._pending) >= MAX_PENDING_SCALARS:
            self._flush()
            # Without a connection, the newest are kept.
            del self._pending[: len(self._pending) + 1 - MAX_PENDING_SCALARS]
        self._pending.append((name, value))

    def add_own(self, values: Mapping[str, float]) -> None:
        """Record the client's own metrics, if the server accepts more names."""
        if self._reserved and all(map(self._fits, values)):
            self._pending += values.items()

    def flush(self) -> None:
        """Send the pending scalars without waiting. Does nothing without a connection."""
        self._flush()

    def pop(self) -> rlx.Metrics | None:
        """Remove and return the pending scalars, or None."""
        if not self._pending:
            return None
        pending, self._pending = self._pending, []
        return rlx.Metrics(pending)

    def set_limits(self, limits: rlx.Limits) -> None:
        """Set the server's limits. Scalars beyond them are dropped."""
        self._limits = limits
        fitting = dict.fromkeys(name for name, _ in self._pending if self._fits(name) and name not in self._own_names)
        self._names = set(list(fitting)[: limits.max_metric_names - self._reserved])
        self._pending = [(name, value) for name, value in self._pending if name in self._names]

    @property
    def _reserved(self) -> int:
        """Number of names reserved for the client's own metrics; 0 if the server accepts no more names than these."""
        return len(self._own_names) if self._limits.max_metric_names > len(self._own_names) else 0

    def _fits(self, name: str) -> bool:
        return len(name) <= self._limits.max_metric_name_bytes

    def _normalize(self, name: str) -> str:
        made = check_name(name)
        if len(self._normalized) < self._limits.max_metric_names:
            self._normalized[name] = made
        return made

    def _check(self, name: str) -> None:
        if not self._fits(name):
            raise ValueError(
                f"metric name {name!r} is longer than the limit of {self._limits.max_metric_name_bytes} characters"
            )
        if len(self._names) >= self._limits.max_metric_names - self._reserved:
            own = self._reserved
            besides = f", {own} of them for the client's latencies (report_latency=None frees these)" if own else ""
            raise ValueError(
                f"metric {name!r} exceeds the server's limit of {self._limits.max_metric_names} names{besides}"
            )
        self._names.add(name)


def check_name(name: str) -> str:
    """Return the normalized name of a metric. Raises ValueError if it is empty or reserved."""
    if not name:
        raise ValueError("metric name '' is empty: give a name")
    made = normalize_name(name)
    if made in NAMES:
        raise ValueError(f"metric name {name!r} is reserved for the client's own metrics: choose another name")
    return made
