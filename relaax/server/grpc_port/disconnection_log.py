"""Log connections and calls that were ended because they held up a port, by address."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from relaax.server.security.strikes import MAX_ADDRESSES, network_of

_log = logging.getLogger(__name__)
SECONDS = 60.0
"""Seconds between two lines about an address."""


@dataclass(slots=True)
class _Disconnections:
    told: float = -math.inf
    ended: Counter[str] = field(default_factory=Counter)


class DisconnectionLog:
    """Logs at most one line a minute for each address, with all that was ended since the last one. Thread-safe.

    `MAX_ADDRESSES` are remembered, those of the latest; of IPv6 the first 64 bits. `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._records: OrderedDict[str, _Disconnections] = OrderedDict()

    def add(self, host: str, what: str) -> None:
        """Note that something of this address was ended. `what` says what and why."""
        name = network_of(host)
        with self._lock:
            record = self._records.setdefault(name, _Disconnections())
            self._records.move_to_end(name)
            record.ended[what] += 1
            if len(self._records) > MAX_ADDRESSES:
                self._records.popitem(last=False)

    def tell(self) -> None:
        """Log what is due. Called every second or so."""
        now = self._clock()
        with self._lock:
            due = {
                name: record for name, record in self._records.items() if record.ended and now - record.told >= SECONDS
            }
            lines = {
                name: "; ".join(f"{n} x {what}" for what, n in record.ended.items()) for name, record in due.items()
            }
            for record in due.values():
                record.told = now
                record.ended.clear()
        for name, line in lines.items():
            _log.warning("stopped what holds up the gRPC port, of %s: %s", name, line)
