"""What servers with a guarded gRPC port export of it to Prometheus."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from relaax.server.grpc_port.call_counter import CallCounter
from relaax.server.grpc_port.port import GrpcPort
from relaax.server.local_port.offers import SharedMemoryOffers
from relaax.server.status import Family


@dataclass(frozen=True, slots=True)
class PortSample:
    """The values of one scrape. `calls`: by method and status."""

    serving: bool
    uptime: float
    calls: Mapping[tuple[str, str], int]
    by_memory: int
    unfinished: int
    calls_stopped: Mapping[str, int]
    connections: Mapping[str, int]
    connections_closed: Mapping[str, int]


class PortMeter:
    """Samples a port, from the start of the process on. `calls`: by the way they came."""

    def __init__(self, port: GrpcPort, calls: Mapping[str, CallCounter], offers: SharedMemoryOffers) -> None:
        self._port, self._calls, self._offers = port, calls, offers
        self._begun = time.monotonic()

    def sample(self) -> PortSample:
        """Return the present values."""
        reading, connections = self._port.keeper.reading, self._port.keeper.connections
        return PortSample(
            self._port.serving,
            time.monotonic() - self._begun,
            sum((Counter(counter.calls) for counter in self._calls.values()), Counter[tuple[str, str]]()),
            self._offers.connected(),
            reading.unfinished,
            reading.ended,
            connections.counts,
            connections.closed,
        )

    def answered(self, method: str) -> dict[str, int]:
        """Return how many calls of a method were answered, by the way they came."""
        return {bridge: counter.calls.get((method, "OK"), 0) for bridge, counter in self._calls.items()}


class HasPort(Protocol):
    """The values of one scrape of a server with such a port."""

    @property
    def port(self) -> PortSample:
        """Those of its port."""


def labelled(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    """Return counts by one label as a family's values."""
    return {(label,): count for label, count in counts.items()}


PORT_FAMILIES: tuple[Family[HasPort], ...] = (
    Family("uptime_seconds", "seconds since the start of the process", lambda v: v.port.uptime),
    Family("calls_total", "calls by method and status", lambda v: v.port.calls, ("method", "code")),
    Family("unfinished_calls", "calls whose messages are not there yet", lambda v: v.port.unfinished),
    Family(
        "stopped_calls_total",
        "calls ended because their messages did not come, by reason",
        lambda v: labelled(v.port.calls_stopped),
        ("reason",),
    ),
    Family("connections", "connections of the gRPC port, by kind", lambda v: labelled(v.port.connections), ("kind",)),
    Family(
        "closed_connections_total",
        "connections of the gRPC port closed by the server, by reason",
        lambda v: labelled(v.port.connections_closed),
        ("reason",),
    ),
)
"""Without the server's name before theirs."""
