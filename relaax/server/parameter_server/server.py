"""A running parameter server: gRPC in front, checkpoints and metrics behind, and the order in which they end."""

from __future__ import annotations

import logging
import time
from concurrent import futures
from dataclasses import dataclass

import grpc

from relaax.bridge import parameter_server_pb2_grpc as pb_grpc
from relaax.bridge.options import server_options
from relaax.metrics import MetricsWriter
from relaax.server.address import AddressError, split_address
from relaax.server.parameter_server.checkpointing import Checkpointer
from relaax.server.parameter_server.core import ParameterServer
from relaax.server.parameter_server.reason import Ends, Reason
from relaax.server.parameter_server.service import Service

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. After the end of training the server stays at least `linger` and at most `grace`, so that workers are
    told; `drain` is what calls in flight get when it stops.
    """

    grace: float = 10.0
    linger: float = 3.0
    drain: float = 2.0


class Server:
    """Serves `core` at `address` until there is a reason in `ends`: a signal, or the end of training. The first counts.

    `parameters` bounds the length of messages: the vector's length where it is known, else the longest allowed.
    """

    def __init__(
        self,
        core: ParameterServer,
        address: str,
        parameters: int,
        ends: Ends,
        checkpointer: Checkpointer | None = None,
        metrics: MetricsWriter | None = None,
        threads: int = 8,
        timing: Timing | None = None,
    ) -> None:
        self._core = core
        self._checkpointer = checkpointer
        self._metrics = metrics
        self._timing = timing or Timing()
        self._ends = ends
        self._grpc = grpc.server(
            futures.ThreadPoolExecutor(threads, thread_name_prefix="rpc"), options=server_options(parameters)
        )
        pb_grpc.add_ParameterServerServiceServicer_to_server(Service(core), self._grpc)
        self.address = self._bind(address)

    def start(self) -> None:
        """Begin to answer."""
        self._grpc.start()
        if self._checkpointer:
            self._checkpointer.start()
        if self._metrics:
            self._metrics.start()

    def run(self) -> tuple[Reason, bool]:
        """Serve until the end. Returns why it ended, and whether the last checkpoint is safe."""
        reason = self._ends.get()
        assert reason is not None, "waiting has no end but a reason"
        _log.info("ending: %s", reason.name.lower())
        if reason is Reason.FINISHED:
            return reason, self._end_finished()
        return reason, self._end_stopped()

    def _end_stopped(self) -> bool:
        """No more updates, then the last checkpoint, which so holds every update that was acknowledged."""
        self._grpc.stop(self._timing.drain).wait()
        safe = self._save_last()
        self._close_metrics()
        return safe

    def _end_finished(self) -> bool:
        """The last checkpoint first: nothing changes any more, and workers are told meanwhile."""
        begun = time.monotonic()
        safe = self._save_last()
        while time.monotonic() - begun < self._timing.grace:
            if time.monotonic() - begun >= self._timing.linger and self._core.registry.connected == 0:
                break
            if self._ends.get(timeout=0.05) is not None:
                break  # somebody wants it to end now
        self._grpc.stop(self._timing.drain).wait()
        self._close_metrics()
        return safe

    def _save_last(self) -> bool:
        if self._checkpointer is None:
            return True
        self._checkpointer.stop()
        return self._checkpointer.save(attempts=3)

    def _close_metrics(self) -> None:
        if self._metrics:
            self._metrics.close()

    def _bind(self, address: str) -> str:
        host, _ = split_address(address)
        try:
            port = self._grpc.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if not port:
            raise AddressError(
                f"{address} cannot be listened at: it is in use or not of this machine; port 0 picks a free one"
            )
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
