"""Counts of failures by network address, which block the address, and a log of closed connections and calls."""

from __future__ import annotations

import ipaddress
import logging
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

_log = logging.getLogger(__name__)
SECONDS = 60.0
"""Period over which failures are counted, in seconds.

It is also the duration of a block, and the minimum time between two log lines about an address.
"""
MAX_ADDRESSES = 1024


@dataclass(slots=True)
class _Strike:
    since: float
    count: int = 0
    blocked_until: float = 0.0


class Strikes:
    """A counter of failures that blocks an address for a minute after `limit` failures within a minute. Thread-safe.

    It keeps the `MAX_ADDRESSES` addresses that failed last. An IPv6 address counts by its first 64 bits, which usually
    identify one customer of a network. `clock` returns seconds.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._records: OrderedDict[str, _Strike] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, host: str) -> bool:
        """Count a failure. Return whether it blocks the address."""
        now, name = self._clock(), network_of(host)
        with self._lock:
            record = self._records.pop(name, None)
            if record is None or now - record.since > SECONDS:
                record = _Strike(now, 0, record.blocked_until if record else 0.0)
            self._records[name] = record
            if len(self._records) > MAX_ADDRESSES:
                self._records.popitem(last=False)
            record.count += 1
            if record.count < self.limit or record.blocked_until > now:
                return False
            record.blocked_until, record.count, record.since = now + SECONDS, 0, now
            return True

    def is_blocked(self, host: str) -> bool:
        """Return whether the address is blocked."""
        if not self._records:
            return False
        with self._lock:
            record = self._records.get(network_of(host))
            return record is not None and record.blocked_until > self._clock()


def network_of(host: str) -> str:
    """Return the network under which an address is counted: the address itself, or the first 64 bits of IPv6.

    Return any other text unchanged.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


@dataclass(slots=True)
class _Disconnections:
    last_logged: float = -math.inf
    ended: Counter[str] = field(default_factory=Counter)


class DisconnectionLog:
    """A log of at most one line a minute for each address, which counts its closed connections and calls. Thread-safe.

    It groups addresses by network as `Strikes` does, and keeps the `MAX_ADDRESSES` networks of the latest entries.
    `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._records: OrderedDict[str, _Disconnections] = OrderedDict()

    def add(self, host: str, what: str) -> None:
        """Add an entry for an address. `what`: the connection or call that was closed, and why."""
        name = network_of(host)
        with self._lock:
            record = self._records.setdefault(name, _Disconnections())
            self._records.move_to_end(name)
            record.ended[what] += 1
            if len(self._records) > MAX_ADDRESSES:
                self._records.popitem(last=False)

    def write(self) -> None:
        """Log the entries that are due. Called about every second."""
        now, lines = self._clock(), {}
        with self._lock:
            for name, record in self._records.items():
                if record.ended and now - record.last_logged >= SECONDS:
                    lines[name] = "; ".join(f"{n} x {what}" for what, n in record.ended.items())
                    record.last_logged = now
                    record.ended.clear()
        for name, line in lines.items():
            _log.warning("closed connections or calls that block the gRPC port, from %s: %s", name, line)
