"""Failures counted by network address."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

SECONDS = 60.0
MAX_ADDRESSES = 1024


@dataclass(slots=True)
class _Strike:
    since: float
    count: int = 0
    out_until: float = 0.0


class Strikes:
    """Block an address for a minute after `limit` failures within a minute. Thread-safe.

    Only the `MAX_ADDRESSES` addresses that failed last are remembered; for IPv6 the first 64 bits, which usually
    identify one customer of a network. `clock` gives seconds.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._records: OrderedDict[str, _Strike] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, host: str) -> bool:
        """Count a failure and return whether it blocks the address from now on."""
        now, name = self._clock(), network_of(host)
        with self._lock:
            record = self._records.pop(name, None)
            if record is None or now - record.since > SECONDS:
                record = _Strike(now, 0, record.out_until if record else 0.0)
            self._records[name] = record
            if len(self._records) > MAX_ADDRESSES:
                self._records.popitem(last=False)
            record.count += 1
            if record.count < self.limit or record.out_until > now:
                return False
            record.out_until, record.count, record.since = now + SECONDS, 0, now
            return True

    def is_out(self, host: str) -> bool:
        """Return whether the address is blocked."""
        if not self._records:
            return False
        with self._lock:
            record = self._records.get(network_of(host))
            return record is not None and record.out_until > self._clock()


def network_of(host: str) -> str:
    """Return the network under which an address's failures are counted; any other text is returned as is."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
