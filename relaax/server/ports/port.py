"""A gRPC port with authentication, limits for connections and calls, health, and counts of calls."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent import futures
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from relaax.server.address import cannot_listen, require_free, split_address
from relaax.server.ports.connections import GREEDY, Connections
from relaax.server.ports.guard import Credentials, Refusals
from relaax.server.ports.local_session import SharedMemoryOffers
from relaax.server.ports.request_reader import THREADS, RequestReader
from relaax.server.security.strikes import DisconnectionLog
from relaax.server.status import Family
from relaax.transport.grpc_options import server_options
from relaax.transport.process_resources import return_freed_memory

_log = logging.getLogger(__name__)

ANY = "any"
"""The method under which refused calls are counted, whatever their method is."""
Handler = Any  # grpc.RpcMethodHandler, or None


class CallCounter(grpc.ServerInterceptor):  # type: ignore[type-arg]  # it is generic in its stubs only
    """An interceptor that counts unary calls. Other code adds calls that it has aborted.

    Methods that the server does not have are not counted, because callers could choose any number of names.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str]] = Counter()

    @property
    def calls(self) -> Mapping[tuple[str, str], int]:
        """Number of calls by method ("Push") and status ("OK")."""
        with self._lock:
            return dict(self._calls)

    def count(self, method: str, code: grpc.StatusCode) -> None:
        """Count a call that ended with this status before it reached its method."""
        with self._lock:
            self._calls[method, code.name] += 1

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        method = handler_call_details.method.rpartition("/")[2]
        answer = handler.unary_unary

        def counted(request: Any, context: Any) -> Any:
            code = grpc.StatusCode.UNKNOWN
            try:
                response = answer(request, context)
                code = grpc.StatusCode.OK
                return response
            finally:
                code = context.code() or code
                with self._lock:
                    self._calls[method, getattr(code, "name", str(code))] += 1

        return grpc.unary_unary_rpc_method_handler(
            counted,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


class Health:
    """The gRPC health of the server as a whole, "", and of its `service`. Thread-safe.

    It is NOT_SERVING at first. It is SERVING after `serve(True)`, until `serve(False)` or `end`.
    """

    def __init__(self, server: grpc.Server, service: str) -> None:
        self._names = ("", service)
        self._lock = threading.Lock()
        self._serving = self._ended = False
        self._servicer = health.HealthServicer()
        self._set(False)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        reflection.enable_server_reflection((service, health.SERVICE_NAME, reflection.SERVICE_NAME), server)

    @property
    def serving(self) -> bool:
        """Whether callers are served."""
        return self._serving

    def serve(self, serving: bool) -> None:
        """Set whether callers are served."""
        with self._lock:
            if not self._ended:
                self._set(serving)

    def end(self) -> None:
        """Report NOT_SERVING from now on: the server is stopping."""
        with self._lock:
            self._ended = True
            self._set(False)

    def _set(self, serving: bool) -> None:
        self._serving = serving
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            self._servicer.set(name, status)


PORT_CHECK_SECONDS = 1.0
"""Seconds between two checks of connections and calls."""
SOON_SECONDS = 0.05
"""Seconds between two checks while calls are refused or a connection has sent too much without a token; at least ten
times as long as a check takes.
"""
TRIMS = 10
"""Number of checks that return freed memory to the kernel after a greedy connection was closed.

One check is not enough, because gRPC frees its memory gradually.
"""


class PortProtection:
    """A thread that checks a port's calls and connections every second, and sooner while calls are refused."""

    def __init__(
        self,
        on_ended: Callable[[str, grpc.StatusCode], None],
        admit: Callable[[str, grpc.ServicerContext], None],
        on_lost: Callable[[str], None] = lambda worker_id: None,
        lasting: Collection[str] = (),
    ) -> None:
        """For `on_ended`, `admit` and `lasting` see `RequestReader`, for `on_lost` see `Connections`."""
        self._disconnections = DisconnectionLog()
        self.connections = Connections(self._disconnections, on_lost)
        self.reader = RequestReader(
            self._disconnections,
            on_ended,
            self.connections.note_call,
            admit,
            lasting,
            on_admitted=self.connections.note_admitted,
        )
        self._closed = self._trims = 0
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, port: int) -> None:
        """Start to check this port of the process."""
        self._thread = threading.Thread(target=self._run, args=(port,), name="port-protection", daemon=True)
        self._thread.start()

    def note_refused(self, peer: str) -> None:
        """Note a call of this peer that was refused because of its token, and check its connection soon."""
        self.connections.note_refused(peer)
        self._wake.set()

    def stop(self) -> None:
        """Stop the thread. Called once, after `start`."""
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
                    due = began + PORT_CHECK_SECONDS
                    self._check_calls()
                soon = self.connections.check(port, self.reader.waited)
                pause = min(PORT_CHECK_SECONDS, max(SOON_SECONDS, 10 * (time.monotonic() - began)))
            except Exception:  # a bug in one check must not end the protection of the port
                _log.exception("a check of the gRPC port failed")
                pause = PORT_CHECK_SECONDS
            self._stop.wait(pause)
            if not soon:
                self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()

    def _check_calls(self) -> None:
        self.reader.end_late_calls()
        self._disconnections.write()
        before, self._closed = self._closed, self.connections.closed[GREEDY]
        self._trims = TRIMS if self._closed > before else self._trims - 1
        if self._trims > 0:
            return_freed_memory()


_CONNECTIONS = "grpc.max_allowed_incoming_connections"


class GrpcPort:
    """A gRPC server of one service. Call `bind` after all services are added to `server`.

    service: its full name, for health. longest: maximum bytes of a message. more_threads: number of threads in addition
    to those for calls. For `on_lost` and `lasting` see `PortProtection`.
    """

    def __init__(
        self,
        service: str,
        longest: int,
        credentials: Credentials,
        calls: CallCounter,
        more_threads: int = 0,
        on_lost: Callable[[str], None] = lambda worker_id: None,
        lasting: Collection[str] = (),
    ) -> None:
        self._credentials = credentials
        refusals = Refusals(self._note_refusal)
        self._calls = calls
        self.protection = PortProtection(calls.count, partial(credentials.admit, refusals), on_lost, lasting)
        self.server = grpc.server(
            futures.ThreadPoolExecutor(THREADS + more_threads, thread_name_prefix="rpc"),
            interceptors=[self.protection.reader, calls, *credentials.guards(refusals)],
            options=[*server_options(longest), (_CONNECTIONS, self.protection.connections.limit)],
        )
        self.health = Health(self.server, service)
        self.address = ""
        """HOST:PORT, after `bind`."""

    def _note_refusal(self, peer: str) -> None:
        self._calls.count(ANY, grpc.StatusCode.UNAUTHENTICATED)
        self.protection.note_refused(peer)

    @property
    def serving(self) -> bool:
        """Whether callers are served, and calls do not wait too long for a thread."""
        return self.health.serving and not self.protection.reader.jammed

    def bind(self, address: str) -> str:
        """Bind the port; return HOST:PORT. Raises AddressError."""
        require_free(address)
        host, _ = split_address(address)
        tls = self._credentials.tls
        try:
            port = self.server.add_secure_port(address, tls) if tls else self.server.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if not port:
            raise cannot_listen(address, "it is in use or not an address of this machine; port 0 picks a free one")
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return self.address

    def start(self) -> None:
        """Start to serve calls and to check the port."""
        self.server.start()
        self.protection.start(split_address(self.address)[1])


@dataclass(frozen=True, slots=True)
class PortSample:
    """The values of one scrape. `calls`: number of calls by method and status."""

    serving: bool
    uptime: float
    calls: Mapping[tuple[str, str], int]
    by_memory: int
    unfinished: int
    calls_stopped: Mapping[str, int]
    connections: Mapping[str, int]
    connections_closed: Mapping[str, int]


class PortMeter:
    """A meter of a port, from its construction on. `calls`: counters by transport."""

    def __init__(self, port: GrpcPort, calls: Mapping[str, CallCounter], offers: SharedMemoryOffers) -> None:
        self._port, self._calls, self._offers = port, calls, offers
        self._begun = time.monotonic()

    def sample(self) -> PortSample:
        """Return the present values."""
        reading, connections = self._port.protection.reader, self._port.protection.connections
        return PortSample(
            self._port.serving,
            time.monotonic() - self._begun,
            sum((Counter(counter.calls) for counter in self._calls.values()), Counter[tuple[str, str]]()),
            self._offers.connected(),
            reading.unfinished,
            reading.ended,
            connections.counts,
            connections.closed,
        )

    def answered(self, method: str) -> dict[str, int]:
        """Return how many calls of a method were answered, by transport."""
        return {transport: counter.calls.get((method, "OK"), 0) for transport, counter in self._calls.items()}


class HasPort(Protocol):
    """The values of one scrape of a server with a gRPC port."""

    @property
    def port(self) -> PortSample:
        """The values of its port."""


def labelled(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    """Return counts by one label as the values of a family."""
    return {(label,): count for label, count in counts.items()}


PORT_FAMILIES: tuple[Family[HasPort], ...] = (
    Family("uptime_seconds", "seconds since the start of the process", lambda v: v.port.uptime),
    Family("calls_total", "calls by method and status", lambda v: v.port.calls, ("method", "code")),
    Family("unfinished_calls", "calls whose messages are incomplete", lambda v: v.port.unfinished),
    Family(
        "stopped_calls_total",
        "calls ended because their messages did not arrive, by reason",
        lambda v: labelled(v.port.calls_stopped),
        ("reason",),
    ),
    Family("connections", "connections of the gRPC port, by kind", lambda v: labelled(v.port.connections), ("kind",)),
    Family(
        "closed_connections_total",
        "connections of the gRPC port closed by the server, by reason",
        lambda v: labelled(v.port.connections_closed),
        ("reason",),
    ),
)
"""Families of a port. A server adds its own prefix to their names."""
