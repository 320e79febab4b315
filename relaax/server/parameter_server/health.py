"""The standard gRPC services of a parameter server: health (grpc.health.v1) and reflection."""

from __future__ import annotations

import threading

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from relaax.parameters import parameter_server_pb2 as pb

SERVICE: str = pb.DESCRIPTOR.services_by_name["ParameterServerService"].full_name
_NAMES = ("", SERVICE)


class Health:
    """The health of the server as a whole, "", and of `SERVICE`. Thread-safe.

    NOT_SERVING at first; SERVING if `serve` was said with true and `end` was not.
    """

    def __init__(self, server: grpc.Server) -> None:
        self._lock = threading.Lock()
        self._serving = self._ended = False
        self._servicer = health.HealthServicer()
        self._set(False)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)

    @property
    def serving(self) -> bool:
        """Whether workers are served."""
        return self._serving

    def serve(self, serving: bool) -> None:
        """Report from now on whether workers are served."""
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
        for name in _NAMES:
            self._servicer.set(name, status)
