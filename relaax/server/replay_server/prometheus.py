"""Prometheus metrics and HTTP health of a replay server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from relaax import __version__
from relaax.server.address import listen
from relaax.server.ports.local_session import SharedMemoryOffers
from relaax.server.ports.port import PORT_FAMILIES, CallCounter, GrpcPort, PortMeter, PortSample
from relaax.server.replay_server.service import ReplayService
from relaax.server.replay_server.table_checkpoints import TableCheckpoints
from relaax.server.replay_server.table_statistics import TableStatistics
from relaax.server.status import Families, Family, StatusServer, registry_of


@dataclass(frozen=True)
class ReplaySample:
    """The values of one scrape."""

    statistics: Mapping[str, TableStatistics]
    memory: int
    lost_updates: int
    by_transport: Mapping[tuple[str, str], int]
    port: PortSample
    checkpoints: TableCheckpoints | None


# Metrics with the label `table`: name, description, and value.
_OF_TABLES: tuple[tuple[str, str, Callable[[TableStatistics], float]], ...] = (
    ("tables", "tables with this name: more than one if sessions have their own", lambda t: t.tables),
    ("table_bytes", "memory of the table when full", lambda t: t.bytes),
    ("items", "items in a table", lambda t: t.size),
    ("capacity", "maximum number of items in a table", lambda t: t.capacity),
    ("inserts_total", "items inserted", lambda t: t.inserts),
    ("samples_total", "items sampled", lambda t: t.samples),
    (
        "samples_per_insert",
        "ratio of sampled to inserted items",
        lambda t: t.samples / t.inserts if t.inserts else 0.0,
    ),
    ("overruns_total", "items whose insert was forced after its maximum wait", lambda t: t.overruns),
    ("duplicates_total", "repeated inserts, which change nothing", lambda t: t.duplicates),
    ("stale_updates_total", "priority updates of evicted items", lambda t: t.stale_updates),
    ("sample_age", "mean number of items inserted after a sampled item, of recent samples", lambda t: t.mean_age),
)
_TRANSPORTS = "answered inserts and samples, by transport"
_CONNECTIONS = "writers and samplers connected by shared memory"
_SAVED = "Unix time of the newest checkpoint, if checkpoints are configured"


def _of_each(read: Callable[[TableStatistics], float]) -> Callable[[ReplaySample], Mapping[tuple[str, ...], float]]:
    return lambda sample: {(name,): read(numbers) for name, numbers in sample.statistics.items()}


def _saved(read: Callable[[TableCheckpoints], float | None]) -> Callable[[ReplaySample], float | None]:
    return lambda sample: read(sample.checkpoints) if sample.checkpoints and sample.checkpoints.saved else None


_FAMILIES: tuple[Family[ReplaySample], ...] = (
    Family("serving", "1 if workers and learners are served, else 0", lambda v: v.port.serving),
    Family("memory_bytes", "memory limit of all tables", lambda v: v.memory),
    *(Family(name, text, _of_each(read), ("table",)) for name, text, read in _OF_TABLES),
    Family("lost_updates_total", "priority updates of dropped tables", lambda v: v.lost_updates),
    Family("bridge_calls_total", _TRANSPORTS, lambda v: v.by_transport, ("method", "bridge")),
    Family("connections_by_shared_memory", _CONNECTIONS, lambda v: v.port.by_memory),
    Family("checkpoint_timestamp_seconds", _SAVED, _saved(lambda k: k.saved.time if k.saved else None)),
    Family("checkpoint_bytes", "size of the newest checkpoint", _saved(lambda k: k.bytes)),
    Family(
        "checkpoint_seconds",
        "seconds to write the newest checkpoint",
        lambda v: v.checkpoints.seconds if v.checkpoints else None,
    ),
    Family(
        "checkpoint_failures_total",
        "failed attempts to save a checkpoint",
        lambda v: v.checkpoints.failures if v.checkpoints else 0,
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
    checkpoints: TableCheckpoints | None = None,
) -> StatusServer:
    """Return a status server that is bound to `address` and not started.

    calls: call counters by transport. checkpoints: the checkpoints of the tables, if configured.

    Raises AddressError.
    """
    meter = PortMeter(port, calls, offers)

    def view() -> ReplaySample:
        return ReplaySample(
            service.statistics(),
            service.memory,
            service.lost_updates,
            {
                (method, bridge): count
                for method in ("Insert", "Sample")
                for bridge, count in meter.answered(method).items()
            },
            meter.sample(),
            checkpoints,
        )

    def healthy() -> tuple[bool, Mapping[str, Any]]:
        statistics = service.statistics()
        return port.serving, {
            "server": "relaax-replay-server",
            "version": __version__,
            "shard": service.shard,
            "shards": service.shards,
            "tables": sum(numbers.tables for numbers in statistics.values()),
            "items": sum(numbers.size for numbers in statistics.values()),
            "bytes": sum(numbers.bytes for numbers in statistics.values()),
        }

    return StatusServer(listen(address), healthy, registry_of(Families(REPLAY_FAMILIES, view)))
