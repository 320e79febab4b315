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


def health_status(stub: health_pb2_grpc.HealthStub, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    status: int = stub.Check(request, timeout=PATIENCE, wait_for_ready=True).status
    return status


@pytest.mark.parametrize("service", ["", SERVICE])
def test_health_status_follows_the_serving_flag(service: str) -> None:
    with running() as server, health_of(server) as stub:
        assert health_status(stub, service) == SERVING
        server.server.health.serve(False)  # another shard is unavailable
        assert health_status(stub, service) == NOT_SERVING
        server.server.health.serve(True)
        assert health_status(stub, service) == SERVING
        server.server.health.end()
        server.server.health.serve(True)  # no effect after `end`
        assert health_status(stub, service) == NOT_SERVING
        assert not server.server.health.serving


def test_health_of_an_unknown_service_is_not_found() -> None:
    with running() as server, health_of(server) as stub, pytest.raises(grpc.RpcError) as refused:
        health_status(stub, "relaax.v1.Another")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_lists_the_services() -> None:
    with running() as server, grpc.insecure_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        (answer,) = stub.ServerReflectionInfo(requests, timeout=PATIENCE, wait_for_ready=True)
    names = {service.name for service in answer.list_services_response.service}
    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


def test_stop_closes_the_port_before_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order: watchers get NOT_SERVING, the port closes, all acknowledged updates are saved, the server ends."""
    saving, released = threading.Event(), threading.Event()
    publish = CheckpointManager.save

    def save(self: CheckpointManager, *arguments: object, **more: object) -> object:
        saving.set()
        assert released.wait(PATIENCE)
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
                    request = health_pb2.HealthCheckRequest()
                    health_pb2_grpc.HealthStub(channel).Check(request, timeout=PATIENCE)
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE, "the port is closed"
                assert server.ended is None
            finally:
                released.set()
                stopping.join(PATIENCE)
    assert not stopping.is_alive()
    assert server.ended is not None and server.ended[1], "the last checkpoint is saved"
    assert list(tmp_path.glob("*/manifest.json")), "it is published"
