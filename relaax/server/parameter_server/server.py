"""A running parameter server: gRPC, checkpoints, metrics, and the order in which they end."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from relaax.metrics import MetricsWriter
from relaax.parameters.wire import add_to_server
from relaax.server.checkpointing import LAST_ATTEMPTS, LAST_SECONDS, Checkpointer
from relaax.server.grpc_port.call_counter import CallCounter
from relaax.server.grpc_port.credentials import Credentials
from relaax.server.grpc_port.port import GrpcPort
from relaax.server.local_port.local_server import LocalServer
from relaax.server.local_port.offers import SharedMemoryOffers
from relaax.server.parameter_server.coordination.coordinator import Alone, Coordinator
from relaax.server.parameter_server.core import ParameterServerCore
from relaax.server.parameter_server.grpc_service import SERVICE, GrpcService
from relaax.server.parameter_server.local_connection import LocalConnection, shake_hands
from relaax.server.parameter_server.prometheus import status_server
from relaax.server.parameter_server.roles import JOIN
from relaax.server.parameter_server.service import ParameterService
from relaax.server.termination import EndRequests, Reason
from relaax.transport.frames import FrameSocket
from relaax.transport.grpc_options import message_bytes

_log = logging.getLogger(__name__)
SWEEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. After the end of training the server stays at least `linger` and at most `grace`, so that workers are
    told; `drain` is what calls in flight get when it stops.
    """

    grace: float = 10.0
    linger: float = 3.0
    drain: float = 2.0


class Server:
    """Serves `core` at `address` until `ends` has a reason: a signal, or the end of training. The first one counts.

    `parameters` bounds the length of messages: the vector's length if it is known, else the longest allowed.
    `coordinator`: how this shard acts together with others; by default it is alone.
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
    ) -> None:
        self._core = core
        self._checkpointer = checkpointer
        self._metrics = metrics
        self._timing = timing or Timing()
        self._ends = ends
        self._coordinator = coordinator = coordinator or Alone(core)
        parameters = max(parameters, coordinator.message_parameters)
        calls = CallCounter()
        self._port = GrpcPort(
            SERVICE,
            message_bytes(parameters),
            credentials or Credentials(),
            calls,
            more_threads=coordinator.threads,
            lost=core.registry.lost,
            lasting=(JOIN,),
        )
        self.keeper, self._grpc = self._port.keeper, self._port.server
        offers, local_calls = SharedMemoryOffers(), CallCounter()
        service = ParameterService(core, offers)

        def let_in(frames: FrameSocket, deadline: float) -> tuple[str, LocalConnection]:
            worker_id, shared = shake_hands(frames, core, offers, deadline)
            return worker_id, LocalConnection(frames, shared, service, core, local_calls)

        add_to_server(GrpcService(service, self.keeper.connections.pulled), self._grpc)
        self._local = LocalServer(offers, let_in, core.registry.lost)
        coordinator.add_to_server(self._grpc)
        coordinator.save_now = self._save_now
        coordinator.on_refused = lambda: ends.put(Reason.REFUSED)
        self.health = self._port.health
        coordinator.on_serving = self.health.serve
        self.address = self._port.bind(address)
        self._status = None
        if status_bind is not None:
            self._status = status_server(
                status_bind,
                core,
                self._port,
                {"grpc": calls, "shared_memory": local_calls},
                offers,
                checkpointer,
            )

    @property
    def status_address(self) -> str | None:
        """HOST:PORT of /healthz and /metrics, if they are served."""
        return self._status.address if self._status else None

    def start(self) -> None:
        """Start to answer."""
        if self._status:
            self._status.start()
        self._local.start()
        self._port.start()
        self._coordinator.start()  # workers are served when all shards are there
        if self._checkpointer:
            self._checkpointer.start()
        if self._metrics:
            self._metrics.start()

    def run(self) -> tuple[Reason, bool]:
        """Serve until the end. Return the reason, and whether the last checkpoint is safe."""
        while (reason := self._ends.get(timeout=SWEEP_SECONDS)) is None:
            self._core.shared.sweep()
        _log.info("ending: %s", reason.name.lower())
        self.health.end()  # before the port closes: who watches is told, and sends nobody here any more
        safe = self._end_finished() if reason is Reason.FINISHED else self._end_stopped(reason)
        if self._status:
            self._status.close()
        return reason, safe

    def _end_stopped(self, reason: Reason) -> bool:
        """Stop updates and save the last checkpoint. Return whether it is safe."""
        safe = self._coordinator.stop(reason, self._save_last, self._stop_calls)
        self._close_metrics()
        return safe

    def _end_finished(self) -> bool:
        """Save the last checkpoint while workers are told that training has finished."""
        begun = time.monotonic()
        safe = self._save_last()
        while time.monotonic() - begun < self._timing.grace:
            if time.monotonic() - begun >= self._timing.linger and self._core.registry.count() == 0:
                break
            if self._ends.get(timeout=0.05) is not None:
                break  # somebody wants it to end now
        self._coordinator.end(safe)
        self._stop_calls()
        self._close_metrics()
        return safe

    def _stop_calls(self) -> None:
        """Answer the present calls, and no further ones."""
        stopped = self._grpc.stop(self._timing.drain)
        self._local.stop(self._timing.drain)
        stopped.wait()
        self.keeper.stop()

    def _save_last(self) -> bool:
        if self._checkpointer is None:
            return True
        self._checkpointer.stop()
        return self._checkpointer.save(LAST_SECONDS, last=True, attempts=LAST_ATTEMPTS)

    def _save_now(self) -> bool:
        return self._checkpointer is None or self._checkpointer.save(attempts=LAST_ATTEMPTS)

    @property
    def kept(self) -> bool:
        """Whether this machine keeps the last checkpoint because the store did not accept it."""
        return self._checkpointer is not None and self._checkpointer.kept

    @property
    def not_saved(self) -> str:
        """Why the last attempt at a checkpoint failed, if it did."""
        return self._core.status().checkpoint_error or "shard 0 has not written it"

    @property
    def refusal(self) -> str:
        """Why shard 0 refuses this shard or cannot continue itself, if that was the reason to end."""
        return self._coordinator.refusal

    def _close_metrics(self) -> None:
        if self._metrics:
            self._metrics.close()
