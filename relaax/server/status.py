"""The status port of a server: GET /healthz and GET /metrics over HTTP, each request in a thread.

/healthz returns one JSON object with status 200 if the server is serving, otherwise 503. /metrics returns Prometheus
text. Neither contains secrets. At most `MAX_REQUESTS` connections are open, each for at most `REQUEST_SECONDS`. A test
checks that docs/metrics.md matches the tables of metric families.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relaax.server.address import name_of
from relaax.server.http_server import BoundedHttpServer, QuietRequestHandler

_PATHS = "this port serves /healthz and /metrics"

Health = Callable[[], tuple[bool, Mapping[str, Any]]]
"""Return whether the server is serving, and more fields for /healthz. Called by any thread."""


class StatusServer:
    """A server of status requests on the listening socket `sock`, which it owns and closes."""

    def __init__(self, sock: socket.socket, health: Health, registry: CollectorRegistry) -> None:
        self.address = name_of(sock)
        self._http = _Http(sock, _Handler)
        self._http.health, self._http.registry = health, registry
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.2,), name="status", daemon=True)

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()


class _Http(BoundedHttpServer):
    health: Health
    registry: CollectorRegistry


class _Handler(QuietRequestHandler):
    server: _Http

    def do_GET(self) -> None:  # noqa: N802 - the name is of http.server
        path = self.path.partition("?")[0]
        if path == "/healthz":
            serving, more = self.server.health()
            status = HTTPStatus.OK if serving else HTTPStatus.SERVICE_UNAVAILABLE
            self.answer(status, "application/json", json.dumps({"serving": serving, **more}).encode() + b"\n")
        elif path == "/metrics":
            encoder, kind = choose_encoder(self.headers.get("Accept", ""))
            self.answer(HTTPStatus.OK, kind, encoder(self.server.registry))
        else:
            self.answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", f"{_PATHS}\n".encode())


View = TypeVar("View")
Read = TypeVar("Read", contravariant=True)
Labelled = Mapping[Any, float]
"""Values by labels: each key is a tuple of strings in the order of the label names."""


@dataclass(frozen=True)
class Family(Generic[Read]):
    """A metric. `read` returns its value, or None if it has none yet; with `labels`, a value per label tuple.

    A metric whose name ends in _total is a counter, any other a gauge.
    """

    name: str
    help: str
    read: Callable[[Read], float | Labelled | None]
    labels: tuple[str, ...] = ()

    def metric(self, view: Read) -> Metric:
        """Return the metric with its current value."""
        kind = CounterMetricFamily if self.name.endswith("_total") else GaugeMetricFamily
        metric = kind(self.name, self.help, labels=self.labels)
        value = self.read(view)
        if isinstance(value, Mapping):
            for labels, number in value.items():
                metric.add_metric(labels, number)
        elif value is not None:
            metric.add_metric((), value)
        return metric


class Families(Collector, Generic[View]):
    """A collector that reads all families from one view per scrape. If the view is None, it reports no metrics."""

    def __init__(self, families: Iterable[Family[View]], view: Callable[[], View | None]) -> None:
        self._families = tuple(families)
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        if view is not None:
            for family in self._families:
                yield family.metric(view)

    def describe(self) -> Iterator[Metric]:
        """Yield no metrics, so that a registry does not call `collect` for the names."""
        yield from ()


def registry_of(collector: Collector, pid: Callable[[], int] | None = None) -> CollectorRegistry:
    """Return a registry of `collector` and of the process_* metrics of a process, by default this one."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry, pid=pid or (lambda: "self"))
    return registry
