"""Connections that are cut, stalled, truncated or corrupted, on either side of the RLX server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from relaax.client import Failure
from relaax.rlx import ErrorCode
from support.processes import wait_until
from support.proxy import Proxy
from support.service import Service, started_service
from support.trainee import Training

pytestmark = pytest.mark.checks("relaax/server", "relaax/rlx")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with started_service(tmp_path_factory.mktemp("wire")) as started:
        yield started


@pytest.fixture
def wire(service: Service) -> Iterator[Proxy]:
    """A proxy between client and RLX server."""
    with Proxy(service.address) as proxy:
        yield proxy


@pytest.fixture(params=["", "ws://"], ids=["tcp", "websocket"])
def training(wire: Proxy, request: pytest.FixtureRequest) -> Iterator[Training]:
    started = Training(f"{request.param}{wire.address}")
    started.expect_more()
    yield started
    wire.heal()
    started.stop()


def test_connection_truncated_at_any_byte_is_replaced(service: Service, wire: Proxy, training: Training) -> None:
    before = service.status
    for offset in (0, 1, 3, 4, 5, 40, 1000):
        connections = wire.connections
        wire.truncate(offset)
        wait_until(lambda there=connections: wire.connections > there, "the client has reconnected", 60)  # type: ignore[misc]
        training.expect_more(30)
    after = service.status
    assert after.updates > before.updates
    assert after.discarded == before.discarded
    assert "Traceback" not in service.rlx_server.stderr


@pytest.mark.parametrize(
    ("offset", "code"), [(0, ErrorCode.FRAME_TOO_LARGE), (4, ErrorCode.MALFORMED)], ids=["length", "message"]
)
def test_corrupt_byte_is_reported_to_that_client_only(service: Service, offset: int, code: ErrorCode) -> None:
    with Proxy(service.address) as wire:
        corrupted, other = Training(wire.address), Training(service.address)
        try:
            for each in (corrupted, other):
                each.expect_more(30)
            wire.corrupt(offset)
            wait_until(lambda: corrupted.error is not None, "the client received an error", 60)
            assert isinstance(corrupted.error, Failure)
            assert corrupted.error.code is code
            other.expect_more(30)
        finally:
            other.stop()
    assert service.rlx_server.returncode is None
    assert "Traceback" not in service.rlx_server.stderr


@pytest.mark.slow
@pytest.mark.parametrize("training", [""], indirect=True)
def test_too_large_frame_length_ends_in_a_new_connection(wire: Proxy, training: Training) -> None:
    wire.corrupt(3)
    wait_until(lambda: wire.connections >= 2, "the client has replaced the connection", 60)
    training.expect_more(30)


def test_cut_connection_is_replaced(service: Service, wire: Proxy, training: Training) -> None:
    for count in range(1, 4):
        wire.cut()
        training.expect_more()
        assert wire.connections == count + 1
    wait_until(lambda: service.status.workers == 1, "the workers of the lost connections have deregistered")


def test_client_retries_refused_connections(wire: Proxy, training: Training) -> None:
    wire.refuse()
    wait_until(lambda: wire.refused >= 3, "the client has retried", 60)
    wire.heal()
    training.expect_more()


@pytest.mark.slow
def test_stalled_connection_is_replaced(wire: Proxy, training: Training) -> None:
    wire.stall()
    wait_until(lambda: wire.connections >= 2, "the client has replaced the connection", 60)
    wire.heal()
    training.expect_more()


def test_connection_faults_lose_and_duplicate_no_update(service: Service) -> None:
    """Cut connections between a worker and the parameter server: no update is lost or counted twice."""
    with Proxy(service.parameter_server_address) as wire:
        service.start_rlx_server("127.0.0.1:0", parameter_server=wire.address)
        before = service.wait_for_no_workers()
        training = Training(service.address)
        try:
            training.expect_more()
            for _ in range(3):
                wire.cut()
                training.expect_more()
            wire.refuse()
            wait_until(lambda: "is unavailable" in service.rlx_server.stderr, "the worker retries", 60)
            wire.heal()
            training.expect_more()
            wire.truncate(700)
            training.expect_more()
        finally:
            wire.heal()
            training.stop()
        after = service.wait_for_no_workers()
        counted = after.global_step - before.global_step
        assert counted <= training.steps
        assert counted >= training.steps - 2 * 5, "only steps in flight at the end may be missing"
        assert after.updates - before.updates == counted // 5
