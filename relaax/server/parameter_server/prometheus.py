"""Export a parameter server's metrics to Prometheus, and its health over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from relaax import __version__
from relaax.parameters.status import TrainingStatus
from relaax.server.address import listen
from relaax.server.checkpoints.checkpointing import Checkpointer
from relaax.server.grpc_port.call_counter import CallCounter
from relaax.server.grpc_port.port import GrpcPort
from relaax.server.grpc_port.port_metrics import PORT_FAMILIES, PortMeter, PortSample, labelled
from relaax.server.local_port.offers import SharedMemoryOffers
from relaax.server.parameter_server.core import ParameterServerCore
from relaax.server.status import Families, Family, StatusServer, registry_of


@dataclass(frozen=True)
class StatusSample:
    """The values of one scrape."""

    status: TrainingStatus
    pushes: Mapping[str, int]
    repeated: Mapping[str, int]
    checkpoint_failures: int
    port: PortSample


_FAMILIES: tuple[Family[StatusSample], ...] = (
    Family("serving", "1 if workers are served, else 0", lambda v: v.port.serving),
    Family("incarnation", "number of this life of the model", lambda v: v.status.incarnation),
    Family("global_step", "environment steps of the training", lambda v: v.status.global_step),
    Family("max_global_step", "environment steps at which training ends", lambda v: v.status.max_global_step),
    Family("finished", "1 if training has ended, else 0", lambda v: v.status.finished),
    Family("frames_total", "emulator frames of the training", lambda v: v.status.frames),
    Family("updates_total", "updates applied in the training", lambda v: v.status.updates),
    Family(
        "discarded_total",
        "gradients discarded, by reason",
        lambda v: labelled(v.status.discarded_for),
        ("reason",),
    ),
    Family(
        "samples_discarded_total", "samples that no statistic could be merged with", lambda v: v.status.dropped_samples
    ),
    Family(
        "returns_discarded_total",
        "episodes whose returns were left out of the means as outliers",
        lambda v: v.status.discarded_returns,
    ),
    Family(
        "outlying_clients",
        "clients whose samples are left out of the statistics as outliers",
        lambda v: v.status.outlying_clients,
    ),
    Family("episodes_total", "whole episodes of the training", lambda v: v.status.episodes),
    Family("mean_return", "mean return of the last 100 episodes", lambda v: v.status.mean_return_100),
    Family("agreed_return", "mean of recent returns that no client reaches alone", lambda v: v.status.agreed_return),
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
    Family("pushes_total", "pushes answered, by the way they came", lambda v: labelled(v.pushes), ("bridge",)),
    Family(
        "pushes_repeated_total",
        "pushes that came again, and were not applied again",
        lambda v: labelled(v.repeated),
        ("incarnation",),
    ),
    Family("workers_by_shared_memory", "workers that are connected by shared memory", lambda v: v.port.by_memory),
    *PORT_FAMILIES,
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
    meter = PortMeter(port, calls, offers)

    def view() -> StatusSample:
        failures = checkpointer.failures if checkpointer else 0
        return StatusSample(
            core.status(),
            meter.answered("Push"),
            core.repeated,
            failures,
            meter.sample(),
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
