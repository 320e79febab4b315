"""Keep a gRPC port open for all: end, log and count whatever holds it up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

import grpc

from relaax.server.grpc_port.connections import GREEDY, Connections
from relaax.server.grpc_port.disconnection_log import DisconnectionLog
from relaax.server.grpc_port.request_reader import RequestReader
from relaax.transport.process_resources import return_freed_memory

_log = logging.getLogger(__name__)
LOOK_SECONDS = 1.0
SOON_SECONDS = 0.05
"""Seconds between two looks at connections while calls are refused or a connection has sent much without a token; at
least ten times as long as a look takes.
"""
TRIMS = 10
"""Looks after which memory is returned to the kernel, once a connection was closed that had sent much: gRPC frees it
little by little.
"""


class PortProtection:
    """Looks for incomplete calls and idle connections every second, and sooner while calls are refused."""

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
        self._closed = self._trims = 0
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, port: int) -> None:
        """Start to watch this port of the process."""
        self._thread = threading.Thread(target=self._run, args=(port,), name="keeper", daemon=True)
        self._thread.start()

    def refused(self, peer: str) -> None:
        """Note a call of this peer that was refused for its token, and look at its connection soon."""
        self.connections.refused(peer)
        self._wake.set()

    def stop(self) -> None:
        """Stop watching. Called once, after `start`."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, port: int) -> None:
        due = 0.0
        while not self._stop.is_set():
            began, soon = time.monotonic(), False
            try:
                if began >= due:
                    due = began + LOOK_SECONDS
                    self._look_at_all()
                soon = self.connections.look(port, self.reading.waited)
                pause = min(LOOK_SECONDS, max(SOON_SECONDS, 10 * (time.monotonic() - began)))
            except Exception:  # a mistake in one look must not leave the port to others
                _log.exception("a look at the port failed")
                pause = LOOK_SECONDS
            self._stop.wait(pause)
            if not soon:
                self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()

    def _look_at_all(self) -> None:
        self.reading.look()
        self._complaints.tell()
        before, self._closed = self._closed, self.connections.closed[GREEDY]
        self._trims = TRIMS if self._closed > before else self._trims - 1
        if self._trims > 0:
            return_freed_memory()
