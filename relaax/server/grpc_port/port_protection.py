"""Keep a gRPC port open for all: end, log and count whatever holds it up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

import grpc

from relaax.parameters.message_memory import return_freed_memory
from relaax.server.grpc_port.connections import GREEDY, Connections
from relaax.server.grpc_port.disconnection_log import DisconnectionLog
from relaax.server.grpc_port.request_reader import RequestReader

_log = logging.getLogger(__name__)
LOOK_SECONDS = 1.0
TRIMS = 10
"""Looks after which memory is returned to the kernel, once a connection was closed that had sent much: gRPC frees it
little by little.
"""


class PortProtection:
    """Looks every second for incomplete calls and for idle connections."""

    def __init__(
        self,
        ended: Callable[[str, grpc.StatusCode], None],
        admit: Callable[[str, grpc.ServicerContext], None],
        lost: Callable[[str], None] = lambda worker_id: None,
        lasting: Collection[str] = (),
    ) -> None:
        """For `ended`, `admit` and `lasting` see `RequestReader`, for `lost` see `Connections`."""
        self._complaints = DisconnectionLog()
        self.connections = Connections(self._complaints, lost)
        self.reading = RequestReader(
            self._complaints, ended, self.connections.heard, admit, lasting, admitted=self.connections.admitted
        )
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, port: int) -> None:
        """Start to watch this port of the process."""
        self._thread = threading.Thread(target=self._run, args=(port,), name="keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. Called once, after `start`."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, port: int) -> None:
        closed = trims = 0
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self.reading.look()
                self.connections.look(port)
                self._complaints.tell()
                before, closed = closed, self.connections.closed[GREEDY]
                trims = TRIMS if closed > before else trims - 1
                if trims > 0:
                    return_freed_memory()
            except Exception:  # a mistake in one look must not leave the port to others
                _log.exception("a look at the port failed")
