"""Failures counted by the address that they came from."""

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
    """An address that fails `limit` times within a minute is out for a minute. Thread-safe.

    At most `MAX_ADDRESSES` are remembered, those of the latest failures; of IPv6 the first 64 bits, which is what one
    customer of a network usually has. `clock` gives seconds.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._records: OrderedDict[str, _Strike] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, host: str) -> bool:
        """Count a failure; whether the address is out because of it, from now on."""
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
        """Whether the address has failed too often."""
        if not self._records:
            return False
        with self._lock:
            record = self._records.get(network_of(host))
            return record is not None and record.out_until > self._clock()


def network_of(host: str) -> str:
    """What failures of an address are counted under. A text that is no address stands for itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
