"""A running parameter server: gRPC, checkpoints, metrics, status, and the order in which they end."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from relaax import __version__
from relaax.metrics import MetricsWriter
from relaax.parameters.status import TrainingStatus
from relaax.parameters.wire import add_to_server
from relaax.server.address import listen
from relaax.server.checkpoints.checkpointing import LAST_ATTEMPTS, LAST_SECONDS, Checkpointer
from relaax.server.command.termination import EndRequests, Reason
from relaax.server.parameter_server.command.credentials import JOIN
from relaax.server.parameter_server.coordination.coordinator import Alone, Coordinator
from relaax.server.parameter_server.service.core import ParameterServerCore
from relaax.server.parameter_server.service.service import ParameterService
from relaax.server.parameter_server.service.transports import (
    SERVICE,
    GrpcService,
    ParameterSession,
    authenticate_worker,
)
from relaax.server.ports.guard import Credentials
from relaax.server.ports.local_server import LocalServer
from relaax.server.ports.local_session import SharedMemoryOffers
from relaax.server.ports.port import PORT_FAMILIES, CallCounter, GrpcPort, PortMeter, PortSample, labelled
from relaax.server.status import Families, Family, StatusServer, registry_of
from relaax.server.tracker.launch import TrackerProcess
from relaax.transport.frames import FrameSocket
from relaax.transport.grpc_options import message_bytes

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StatusSample:
    """The values of one scrape."""

    status: TrainingStatus
    pushes: Mapping[str, int]
    repeated: Mapping[str, int]
    left_out: int
    checkpoint_failures: int
    port: PortSample


_FAMILIES: tuple[Family[StatusSample], ...] = (
    Family("serving", "1 if workers are served, else 0", lambda v: v.port.serving),
    Family("incarnation", "number that identifies this incarnation of the model", lambda v: v.status.incarnation),
    Family("global_step", "environment steps of the training", lambda v: v.status.global_step),
    Family("max_global_step", "environment steps at which training ends", lambda v: v.status.max_global_step),
    Family("finished", "1 if training has ended, else 0", lambda v: v.status.finished),
    Family("frames_total", "emulator frames of the training", lambda v: v.status.frames),
    Family("updates_total", "updates applied in the training", lambda v: v.status.updates),
    Family(
        "discarded_total", "gradients discarded, by reason", lambda v: labelled(v.status.discarded_for), ("reason",)
    ),
    Family(
        "samples_discarded_total", "samples of statistics that could not be merged", lambda v: v.status.dropped_samples
    ),
    Family(
        "returns_discarded_total",
        "episodes whose returns were excluded from the means as outliers",
        lambda v: v.status.discarded_returns,
    ),
    Family(
        "outlying_clients",
        "clients whose samples are excluded from the statistics as outliers",
        lambda v: v.status.outlying_clients,
    ),
    Family("episodes_total", "whole episodes of the training", lambda v: v.status.episodes),
    Family("mean_return", "mean return of the last 100 episodes", lambda v: v.status.mean_return_100),
    Family("agreed_return", "mean of recent returns that no client can raise alone", lambda v: v.status.agreed_return),
    Family("best_mean_return", "best mean return of 100 episodes so far", lambda v: v.status.best_mean_return_100),
    Family("workers", "training workers active in the last minute", lambda v: v.status.workers),
    Family("exploit_workers", "exploit workers active in the last minute", lambda v: v.status.exploit_workers),
    Family("learners", "learners active in the last minute", lambda v: v.status.learners),
    Family("staleness", "mean staleness of recent gradients, in versions", lambda v: v.status.mean_staleness),
    Family(
        "actor_staleness",
        "mean staleness of the parameters of workers that push no gradients, in versions",
        lambda v: v.status.mean_actor_staleness,
    ),
    Family("learning_rate", "learning rate by the schedule at the global step", lambda v: v.status.learning_rate),
    Family("checkpoint_timestamp_seconds", "Unix time of the newest checkpoint", lambda v: v.status.checkpoint_time),
    Family("checkpoint_global_step", "global step of the newest checkpoint", lambda v: v.status.checkpoint_global_step),
    Family("checkpoint_failures_total", "attempts to save that failed", lambda v: v.checkpoint_failures),
    Family("pushes_total", "pushes answered, by transport", lambda v: labelled(v.pushes), ("bridge",)),
    Family(
        "pushes_repeated_total",
        "repeated pushes, which were not applied again",
        lambda v: labelled(v.repeated),
        ("incarnation",),
    ),
    Family(
        "workers_left_out_total",
        "workers that synchronous updates did not wait for any longer",
        lambda v: v.left_out,
    ),
    Family("workers_by_shared_memory", "workers connected by shared memory", lambda v: v.port.by_memory),
    *PORT_FAMILIES,
)
FAMILIES = tuple(replace(family, name=f"relaax_parameter_server_{family.name}") for family in _FAMILIES)


_HEALTH = ("incarnation", "global_step", "workers", "exploit_workers", "learners", "finished")


def status_server(
    address: str,
    core: ParameterServerCore,
    port: GrpcPort,
    calls: Mapping[str, CallCounter],
    offers: SharedMemoryOffers,
    checkpointer: Checkpointer | None,
) -> StatusServer:
    """Return a status server that is bound to `address` but not started. Raises AddressError.

    `calls`: counters of calls by transport.
    """
    meter = PortMeter(port, calls, offers)

    def view() -> StatusSample:
        failures = checkpointer.failures if checkpointer else 0
        pushes = meter.answered("Push")
        return StatusSample(core.status(), pushes, core.repeated, core.left_out, failures, meter.sample())

    def healthy() -> tuple[bool, Mapping[str, Any]]:
        status = core.status()
        return port.serving, {
            "server": "relaax-parameter-server",
            "version": __version__,
            **{name: getattr(status, name) for name in _HEALTH},
        }

    return StatusServer(listen(address), healthy, registry_of(Families(FAMILIES, view)))


SWEEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations of the shutdown, in seconds.

    After the end of training, the server stays for at least `linger` and at most `grace`, so that workers learn of the
    end. When it stops, calls in flight have `drain` seconds to end.
    """

    grace: float = 10.0
    linger: float = 3.0
    drain: float = 2.0


class Server:
    """A server of `core` at `address` that runs until `ends` has a reason, such as a signal or the end of training.

    `parameters` limits the length of messages: the vector's length if it is known, else the maximum. `coordinator`:
    the coordination with other shards; by default, there are no other shards.
    """

    def __init__(
        self,
        core: ParameterServerCore,
        address: str,
        parameters: int,
        ends: EndRequests,
        checkpointer: Checkpointer | None = None,
        metrics: MetricsWriter | None = None,
        timing: Timing | None = None,
        status_bind: str | None = None,
        credentials: Credentials | None = None,
        coordinator: Coordinator | None = None,
        tracker: TrackerProcess | None = None,
    ) -> None:
        self._core = core
        self._tracker = tracker
        self._checkpointer = checkpointer
        self._metrics = metrics
        self._timing = timing or Timing()
        self._ends = ends
        self._coordinator = coordinator = coordinator or Alone(core)
        offers, calls, local_calls = SharedMemoryOffers(), CallCounter(), CallCounter()
        self._port = GrpcPort(
            SERVICE,
            message_bytes(max(parameters, coordinator.message_parameters)),
            credentials or Credentials(),
            calls,
            more_threads=coordinator.threads,
            on_lost=core.registry.mark_lost,
            lasting=(JOIN,),
        )
        self.protection, self._grpc = self._port.protection, self._port.server
        service = ParameterService(core, offers)

        def authenticate(frames: FrameSocket, deadline: float) -> tuple[str, ParameterSession]:
            worker_id, shared = authenticate_worker(frames, core, offers, deadline)
            return worker_id, ParameterSession(frames, shared, service, core, local_calls)

        add_to_server(GrpcService(service, self.protection.connections.note_pull), self._grpc)
        self._local = LocalServer(offers, authenticate, core.registry.mark_lost)
        coordinator.add_to_server(self._grpc)
        coordinator.save_now = self._save_now
        coordinator.on_refused = lambda: ends.put(Reason.REFUSED)
        self.health = self._port.health
        coordinator.on_serving = self.health.serve
        self.address = self._port.bind(address)
        self._status = None
        if status_bind is not None:
            by_transport = {"grpc": calls, "shared_memory": local_calls}
            self._status = status_server(status_bind, core, self._port, by_transport, offers, checkpointer)

    @property
    def status_address(self) -> str | None:
        """HOST:PORT of /healthz and /metrics; None without a status port."""
        return self._status.address if self._status else None

    def start(self) -> None:
        """Start to serve."""
        if self._status:
            self._status.start()
        self._local.start()
        self._port.start()
        self._coordinator.start()  # workers are served when all shards have joined
        if self._checkpointer:
            self._checkpointer.start()
        if self._metrics:
            self._metrics.start()
        if self._tracker:
            self._tracker.start()

    def run(self) -> tuple[Reason, bool]:
        """Serve until there is a reason to end. Return it, and whether the last checkpoint is safe."""
        while (reason := self._ends.get(timeout=SWEEP_SECONDS)) is None:
            self._core.shared.sweep()
            if self._tracker:
                self._tracker.watch()
        _log.info("parameter server ends: %s", reason.name.lower())
        self.health.end()  # before the port closes, so that load balancers stop sending workers here
        if reason is Reason.FINISHED:
            safe = self._end_finished()
        else:
            safe = self._coordinator.stop(reason, self._save_last, self._stop_calls)
        if self._metrics:
            self._metrics.close()
        if self._tracker:
            self._tracker.end(reason)
        if self._status:
            self._status.close()
        return reason, safe

    def _end_finished(self) -> bool:
        """Save the last checkpoint while workers learn that training has finished. Return whether it is safe."""
        begun = time.monotonic()
        safe = self._save_last()
        while time.monotonic() - begun < self._timing.grace:
            if time.monotonic() - begun >= self._timing.linger and self._core.registry.count() == 0:
                break
            if self._ends.get(timeout=0.05) is not None:
                break  # another reason, such as a signal
        self._coordinator.end(safe)
        self._stop_calls()
        return safe

    def _stop_calls(self) -> None:
        """Stop accepting calls and wait for those in flight."""
        self._core.registry.on_absent = lambda worker_id: None  # workers disconnect because this server ends
        stopped = self._grpc.stop(self._timing.drain)
        self._local.stop(self._timing.drain)
        stopped.wait()
        self.protection.stop()

    def _save_last(self) -> bool:
        if self._checkpointer is None:
            return True
        self._checkpointer.stop()
        return self._checkpointer.save(LAST_SECONDS, last=True, attempts=LAST_ATTEMPTS)

    def _save_now(self) -> bool:
        return self._checkpointer is None or self._checkpointer.save(attempts=LAST_ATTEMPTS)

    @property
    def kept(self) -> bool:
        """Whether this machine keeps the last checkpoint because the store is unavailable."""
        return self._checkpointer is not None and self._checkpointer.has_local_copy

    @property
    def save_error(self) -> str:
        """The reason why the last attempt to save a checkpoint failed, if it did."""
        return self._core.status().checkpoint_error or "shard 0 has not written it"

    @property
    def refusal(self) -> str:
        """The error that ended this server: refusal by shard 0, or no usable checkpoint on shard 0. Else empty."""
        return self._coordinator.refusal
