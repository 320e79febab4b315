"""Export a replay server's metrics to Prometheus, and its health over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from relaax import __version__
from relaax.server.address import listen
from relaax.server.grpc_port.call_counter import CallCounter
from relaax.server.grpc_port.port import GrpcPort
from relaax.server.grpc_port.port_metrics import PORT_FAMILIES, PortMeter, PortSample
from relaax.server.local_port.offers import SharedMemoryOffers
from relaax.server.replay_server.keeping import Keeping
from relaax.server.replay_server.service import ReplayService
from relaax.server.replay_server.tallies import TableTallies
from relaax.server.status import Families, Family, StatusServer, registry_of


@dataclass(frozen=True)
class ReplaySample:
    """The values of one scrape."""

    tallies: Mapping[str, TableTallies]
    memory: int
    lost_updates: int
    by_bridge: Mapping[tuple[str, str], int]
    port: PortSample
    keeping: Keeping | None


def _of_each(read: Callable[[TableTallies], float]) -> Callable[[ReplaySample], Mapping[tuple[str, ...], float]]:
    return lambda sample: {(name,): read(numbers) for name, numbers in sample.tallies.items()}


_TABLE = ("table",)
_FAMILIES: tuple[Family[ReplaySample], ...] = (
    Family("serving", "1 if workers and learners are served, else 0", lambda v: v.port.serving),
    Family("memory_bytes", "memory that all tables may take", lambda v: v.memory),
    Family("tables", "tables, by name: more than one if sessions have their own", _of_each(lambda t: t.tables), _TABLE),
    Family("table_bytes", "memory of a table once it is full", _of_each(lambda t: t.bytes), _TABLE),
    Family("items", "items in a table", _of_each(lambda t: t.size), _TABLE),
    Family("capacity", "items that a table holds", _of_each(lambda t: t.capacity), _TABLE),
    Family("inserts_total", "items inserted", _of_each(lambda t: t.inserts), _TABLE),
    Family("samples_total", "items sampled", _of_each(lambda t: t.samples), _TABLE),
    Family(
        "samples_per_insert",
        "items sampled for each one inserted",
        _of_each(lambda t: t.samples / t.inserts if t.inserts else 0.0),
        _TABLE,
    ),
    Family(
        "overruns_total",
        "items inserted after they had waited as long as they may",
        _of_each(lambda t: t.overruns),
        _TABLE,
    ),
    Family(
        "duplicates_total", "inserts that came again, and changed nothing", _of_each(lambda t: t.duplicates), _TABLE
    ),
    Family("stale_updates_total", "priorities of items that were gone", _of_each(lambda t: t.stale_updates), _TABLE),
    Family("lost_updates_total", "priorities of items of tables that were gone", lambda v: v.lost_updates),
    Family(
        "sample_age",
        "items inserted after one that was sampled, mean of recent samples",
        _of_each(lambda t: t.mean_age),
        _TABLE,
    ),
    Family(
        "bridge_calls_total",
        "inserts and samples answered, by the way they came",
        lambda v: v.by_bridge,
        ("method", "bridge"),
    ),
    Family(
        "connections_by_shared_memory",
        "writers and samplers that are connected by shared memory",
        lambda v: v.port.by_memory,
    ),
    Family(
        "checkpoint_timestamp_seconds",
        "Unix time of the newest checkpoint, if tables are kept in some",
        lambda v: v.keeping.saved.time if v.keeping and v.keeping.saved else None,
    ),
    Family(
        "checkpoint_bytes",
        "length of the newest checkpoint",
        lambda v: v.keeping.bytes if v.keeping and v.keeping.saved else None,
    ),
    Family("checkpoint_seconds", "what it took to write it", lambda v: v.keeping.seconds if v.keeping else None),
    Family(
        "checkpoint_failures_total", "attempts to save that failed", lambda v: v.keeping.failures if v.keeping else 0
    ),
    *PORT_FAMILIES,
)
REPLAY_FAMILIES = tuple(replace(family, name=f"relaax_replay_server_{family.name}") for family in _FAMILIES)


def replay_status_server(
    address: str,
    service: ReplayService,
    port: GrpcPort,
    calls: Mapping[str, CallCounter],
    offers: SharedMemoryOffers,
    keeping: Keeping | None = None,
) -> StatusServer:
    """Return a status server that is bound to `address` and not started. `calls`: by the way they came. `keeping`:
    what saves the tables, if anything does.

    Raises AddressError.
    """
    meter = PortMeter(port, calls, offers)

    def view() -> ReplaySample:
        return ReplaySample(
            service.tallies(),
            service.memory,
            service.lost_updates,
            {
                (method, bridge): count
                for method in ("Insert", "Sample")
                for bridge, count in meter.answered(method).items()
            },
            meter.sample(),
            keeping,
        )

    def healthy() -> tuple[bool, Mapping[str, Any]]:
        tallies = service.tallies()
        return port.serving, {
            "server": "relaax-replay-server",
            "version": __version__,
            "shard": service.shard,
            "shards": service.shards,
            "tables": sum(numbers.tables for numbers in tallies.values()),
            "items": sum(numbers.size for numbers in tallies.values()),
            "bytes": sum(numbers.bytes for numbers in tallies.values()),
        }

    return StatusServer(listen(address), healthy, registry_of(Families(REPLAY_FAMILIES, view)))
