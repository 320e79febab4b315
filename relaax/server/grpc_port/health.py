"""The standard gRPC services of a port: health (grpc.health.v1) and reflection."""

from __future__ import annotations

import threading

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection


class Health:
    """The health of the server as a whole, "", and of its `service`. Thread-safe.

    NOT_SERVING at first; SERVING if `serve` was said with true and `end` was not.
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
        """Report from now on whether callers are served."""
        with self._lock:
            if not self._ended:
                self._set(serving)

    def end(self) -> None:
        """Report that the server is stopping and will not serve again."""
        with self._lock:
            self._ended = True
            self._set(False)

    def _set(self, serving: bool) -> None:
        self._serving = serving
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            self._servicer.set(name, status)
