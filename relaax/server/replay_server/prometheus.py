"""Export a replay server's metrics to Prometheus, and its health over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from relaax import __version__
from relaax.server.address import listen
from relaax.server.ports.local_session import SharedMemoryOffers
from relaax.server.ports.port import PORT_FAMILIES, CallCounter, GrpcPort, PortMeter, PortSample
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


# Of each table, by its name: the metric's name, its description, and the number.
_OF_TABLES: tuple[tuple[str, str, Callable[[TableTallies], float]], ...] = (
    ("tables", "tables, by name: more than one if sessions have their own", lambda t: t.tables),
    ("table_bytes", "memory of a table once it is full", lambda t: t.bytes),
    ("items", "items in a table", lambda t: t.size),
    ("capacity", "items that a table holds", lambda t: t.capacity),
    ("inserts_total", "items inserted", lambda t: t.inserts),
    ("samples_total", "items sampled", lambda t: t.samples),
    (
        "samples_per_insert",
        "items sampled for each one inserted",
        lambda t: t.samples / t.inserts if t.inserts else 0.0,
    ),
    ("overruns_total", "items inserted after they had waited as long as they may", lambda t: t.overruns),
    ("duplicates_total", "inserts that came again, and changed nothing", lambda t: t.duplicates),
    ("stale_updates_total", "priorities of items that were gone", lambda t: t.stale_updates),
    ("sample_age", "items inserted after one that was sampled, mean of recent samples", lambda t: t.mean_age),
)
_WAYS = "inserts and samples answered, by the way they came"
_CONNECTIONS = "writers and samplers that are connected by shared memory"
_SAVED = "Unix time of the newest checkpoint, if tables are kept in some"


def _of_each(read: Callable[[TableTallies], float]) -> Callable[[ReplaySample], Mapping[tuple[str, ...], float]]:
    return lambda sample: {(name,): read(numbers) for name, numbers in sample.tallies.items()}


def _saved(read: Callable[[Keeping], float | None]) -> Callable[[ReplaySample], float | None]:
    return lambda sample: read(sample.keeping) if sample.keeping and sample.keeping.saved else None


_FAMILIES: tuple[Family[ReplaySample], ...] = (
    Family("serving", "1 if workers and learners are served, else 0", lambda v: v.port.serving),
    Family("memory_bytes", "memory that all tables may take", lambda v: v.memory),
    *(Family(name, text, _of_each(read), ("table",)) for name, text, read in _OF_TABLES),
    Family("lost_updates_total", "priorities of items of tables that were gone", lambda v: v.lost_updates),
    Family("bridge_calls_total", _WAYS, lambda v: v.by_bridge, ("method", "bridge")),
    Family("connections_by_shared_memory", _CONNECTIONS, lambda v: v.port.by_memory),
    Family("checkpoint_timestamp_seconds", _SAVED, _saved(lambda k: k.saved.time if k.saved else None)),
    Family("checkpoint_bytes", "length of the newest checkpoint", _saved(lambda k: k.bytes)),
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
