"""Export a parameter server's metrics to Prometheus, and its health over HTTP."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from relaax import __version__
from relaax.parameters.status import TrainingStatus
from relaax.server.address import listen
from relaax.server.grpc_port.call_counter import CallCounter
from relaax.server.grpc_port.port import GrpcPort
from relaax.server.local_port.offers import SharedMemoryOffers
from relaax.server.metric_families import Families, Family, registry_of
from relaax.server.parameter_server.checkpointing import Checkpointer
from relaax.server.parameter_server.core import ParameterServerCore
from relaax.server.status import StatusServer


@dataclass(frozen=True)
class StatusSample:
    """The values of one scrape."""

    status: TrainingStatus
    serving: bool
    calls: Mapping[tuple[str, str], int]
    pushes: Mapping[str, int]
    repeated: Mapping[str, int]
    by_memory: int
    checkpoint_failures: int
    uptime: float
    unfinished: int
    calls_stopped: Mapping[str, int]
    connections: Mapping[str, int]
    connections_closed: Mapping[str, int]


def _labelled(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(label,): count for label, count in counts.items()}


_FAMILIES: tuple[Family[StatusSample], ...] = (
    Family("serving", "1 if workers are served, else 0", lambda v: v.serving),
    Family("uptime_seconds", "seconds since the start of the process", lambda v: v.uptime),
    Family("incarnation", "number of this life of the model", lambda v: v.status.incarnation),
    Family("global_step", "environment steps of the training", lambda v: v.status.global_step),
    Family("max_global_step", "environment steps at which training ends", lambda v: v.status.max_global_step),
    Family("finished", "1 if training has ended, else 0", lambda v: v.status.finished),
    Family("frames_total", "emulator frames of the training", lambda v: v.status.frames),
    Family("updates_total", "updates applied in the training", lambda v: v.status.updates),
    Family(
        "discarded_total",
        "gradients discarded, by reason",
        lambda v: _labelled(v.status.discarded_for),
        ("reason",),
    ),
    Family(
        "samples_discarded_total", "samples that no statistic could be merged with", lambda v: v.status.dropped_samples
    ),
    Family("episodes_total", "whole episodes of the training", lambda v: v.status.episodes),
    Family("mean_return", "mean return of the last 100 episodes", lambda v: v.status.mean_return_100),
    Family("best_mean_return", "the best of these means so far", lambda v: v.status.best_mean_return_100),
    Family("workers", "training workers heard of in the last minute", lambda v: v.status.workers),
    Family("exploit_workers", "exploit workers heard of in the last minute", lambda v: v.status.exploit_workers),
    Family("learners", "learners heard of in the last minute", lambda v: v.status.learners),
    Family("staleness", "mean staleness of recent gradients, in versions", lambda v: v.status.mean_staleness),
    Family(
        "actor_staleness",
        "versions since the parameters that workers without gradients act by, mean of recent pushes",
        lambda v: v.status.mean_actor_staleness,
    ),
    Family("learning_rate", "the schedule at the global step", lambda v: v.status.learning_rate),
    Family(
        "checkpoint_timestamp_seconds",
        "Unix time of the newest checkpoint",
        lambda v: v.status.checkpoint_time,
    ),
    Family(
        "checkpoint_global_step",
        "global step of the newest checkpoint",
        lambda v: v.status.checkpoint_global_step,
    ),
    Family("checkpoint_failures_total", "attempts to save that failed", lambda v: v.checkpoint_failures),
    Family("calls_total", "calls by method and status", lambda v: v.calls, ("method", "code")),
    Family("pushes_total", "pushes answered, by the way they came", lambda v: _labelled(v.pushes), ("bridge",)),
    Family(
        "pushes_repeated_total",
        "pushes that came again, and were not applied again",
        lambda v: _labelled(v.repeated),
        ("incarnation",),
    ),
    Family("workers_by_shared_memory", "workers that are connected by shared memory", lambda v: v.by_memory),
    Family("unfinished_calls", "calls whose messages are not there yet", lambda v: v.unfinished),
    Family(
        "stopped_calls_total",
        "calls ended because their messages did not come, by reason",
        lambda v: _labelled(v.calls_stopped),
        ("reason",),
    ),
    Family("connections", "connections of the gRPC port, by kind", lambda v: _labelled(v.connections), ("kind",)),
    Family(
        "closed_connections_total",
        "connections of the gRPC port closed by the server, by reason",
        lambda v: _labelled(v.connections_closed),
        ("reason",),
    ),
)
FAMILIES = tuple(replace(family, name=f"relaax_parameter_server_{family.name}") for family in _FAMILIES)


def status_server(
    address: str,
    core: ParameterServerCore,
    port: GrpcPort,
    calls: Mapping[str, CallCounter],
    offers: SharedMemoryOffers,
    checkpointer: Checkpointer | None,
) -> StatusServer:
    """Return a status server that is bound to `address` and not started. `calls`: by transport. Raises AddressError."""
    begun, keeper = time.monotonic(), port.keeper

    def view() -> StatusSample:
        failures = checkpointer.failures if checkpointer else 0
        return StatusSample(
            core.status(),
            port.serving,
            sum((Counter(counter.calls) for counter in calls.values()), Counter()),
            {bridge: counter.calls.get(("Push", "OK"), 0) for bridge, counter in calls.items()},
            core.repeated,
            offers.connected(),
            failures,
            time.monotonic() - begun,
            keeper.reading.unfinished,
            keeper.reading.ended,
            keeper.connections.counts,
            keeper.connections.closed,
        )

    def healthy() -> tuple[bool, Mapping[str, Any]]:
        status = core.status()
        return port.serving, {
            "server": "relaax-parameter-server",
            "version": __version__,
            "incarnation": status.incarnation,
            "global_step": status.global_step,
            "workers": status.workers,
            "exploit_workers": status.exploit_workers,
            "learners": status.learners,
            "finished": status.finished,
        }

    return StatusServer(listen(address), healthy, registry_of(Families(FAMILIES, view)))
