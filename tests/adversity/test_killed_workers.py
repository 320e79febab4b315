"""Workers that are killed, as by a system without memory: the parameter server does not count them for long."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.processes import Processes, wait_until
from support.rlx_line import Line
from support.service import Service, started_service

pytestmark = pytest.mark.checks("relaax/server", "relaax/parameters", "relaax/transport")

SILENCE = 60.0  # seconds after which a worker that says nothing is not counted, whatever has become of it


def test_one_that_shares_memory_is_not_counted_from_then_on(tmp_path: Path) -> None:
    with started_service(tmp_path) as service, Line(service.address) as killed, Line(service.address) as other:
        for line in (killed, other):
            line.open()
            line.init()
            for _ in range(20):  # it has pushed
                line.step()
        assert (service.status.workers, service.status.workers_by_shared_memory) == (2, 2)
        first, _ = sorted(service.rlx_server.children(), key=lambda process: process.create_time())
        first.send_signal(signal.SIGKILL)
        wait_until(lambda: service.status.workers == 1, "the killed worker is not counted", SILENCE / 2)
        other.step()
        assert service.status.workers == 1
        with Line(service.address) as again:
            again.open()
            again.init()
            assert service.status.workers == 2


def by_grpc(processes: Processes, tmp_path: Path) -> Service:
    service = Service(processes, tmp_path)
    service.rlx_server.stop()
    service.start_rlx_server("127.0.0.1:0", parameter_server=service.parameter_server_address)
    return service


@pytest.mark.slow
def test_one_over_grpc_is_not_counted_for_long(processes: Processes, tmp_path: Path) -> None:
    service = by_grpc(processes, tmp_path)
    with Line(service.address) as killed, Line(service.address) as other:
        for line in (killed, other):
            line.open()
            line.init()
            for _ in range(20):
                line.step()
        assert (service.status.workers, service.status.workers_by_shared_memory) == (2, 0)
        first, _ = sorted(service.rlx_server.children(), key=lambda process: process.create_time())
        first.send_signal(signal.SIGKILL)
        wait_until(lambda: service.status.workers == 1, "the killed worker is not counted", SILENCE / 2)
        for _ in range(20):
            other.step()
        assert service.status.workers == 1


@pytest.mark.slow
def test_one_over_grpc_is_not_counted_once_its_client_is_back(processes: Processes, tmp_path: Path) -> None:
    service = by_grpc(processes, tmp_path)
    with Line(service.address) as killed:
        session = killed.open(session_id="s1").session_id
        killed.init()
        for _ in range(20):
            killed.step()
        assert (service.status.workers, service.status.workers_by_shared_memory) == (1, 0)
        (worker,) = service.rlx_server.children()
        worker.send_signal(signal.SIGKILL)
    with Line(service.address) as again:
        again.open(session_id=session)
        again.init()
        assert service.status.workers == 1
