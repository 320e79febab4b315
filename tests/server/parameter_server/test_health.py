from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from relaax.checkpoint import CheckpointManager
from relaax.server.parameter_server.service.transports import SERVICE
from support.parameter_servers import Running, gradient, parameter_client, registration, running

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
PATIENCE = 60.0


@contextmanager
def health_of(server: Running) -> Iterator[health_pb2_grpc.HealthStub]:
    with grpc.insecure_channel(server.address) as channel:
        yield health_pb2_grpc.HealthStub(channel)


def said(stub: health_pb2_grpc.HealthStub, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    status: int = stub.Check(request, timeout=PATIENCE, wait_for_ready=True).status
    return status


@pytest.mark.parametrize("service", ["", SERVICE])
def test_it_serves_when_it_is_said_to(service: str) -> None:
    with running() as server, health_of(server) as stub:
        assert said(stub, service) == SERVING
        server.server.health.serve(False)  # another shard is away
        assert said(stub, service) == NOT_SERVING
        server.server.health.serve(True)
        assert said(stub, service) == SERVING
        server.server.health.end()
        server.server.health.serve(True)  # too late
        assert said(stub, service) == NOT_SERVING
        assert not server.server.health.serving


def test_other_services_are_unknown() -> None:
    with running() as server, health_of(server) as stub, pytest.raises(grpc.RpcError) as refused:
        said(stub, "relaax.v1.Another")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_tells_the_services() -> None:
    with running() as server, grpc.insecure_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        (answer,) = stub.ServerReflectionInfo(asked, timeout=PATIENCE, wait_for_ready=True)
    names = {service.name for service in answer.list_services_response.service}
    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


def test_the_order_of_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who watches is told; then the port closes; then the last checkpoint, with every acknowledged update; the end."""
    saving, go_on = threading.Event(), threading.Event()
    publish = CheckpointManager.save

    def save(self: CheckpointManager, *arguments: object, **more: object) -> object:
        saving.set()
        assert go_on.wait(PATIENCE)
        return publish(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(CheckpointManager, "save", save)
    with running(directory=tmp_path, interval=1000) as server, parameter_client(server.address) as client:
        client.register(registration())
        client.pull()
        client.push(gradient(1), env_steps=10)
        with health_of(server) as stub:
            watched = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=PATIENCE)
            assert next(watched).status == SERVING
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            try:
                assert next(watched).status == NOT_SERVING
                assert saving.wait(PATIENCE), "the last checkpoint is written"
                with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as refused:
                    said_now = health_pb2.HealthCheckRequest()
                    health_pb2_grpc.HealthStub(channel).Check(said_now, timeout=PATIENCE)
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE, "the port is closed"
                assert server.ended is None
            finally:
                go_on.set()
                stopping.join(PATIENCE)
    assert not stopping.is_alive()
    assert server.ended is not None and server.ended[1], "the last checkpoint is safe"
    assert list(tmp_path.glob("*/manifest.json")), "it is published"
