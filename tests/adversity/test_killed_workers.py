"""The parameter server soon stops counting killed workers, for example after the system ran out of memory."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.processes import Processes, wait_until
from support.rlx_line import Line
from support.service import Service, started_service

pytestmark = pytest.mark.checks("relaax/server", "relaax/parameters", "relaax/transport")

SILENCE = 60.0  # seconds after which a silent worker is no longer counted


def test_killed_shared_memory_worker_is_no_longer_counted(tmp_path: Path) -> None:
    with started_service(tmp_path) as service, Line(service.address) as killed, Line(service.address) as other:
        for line in (killed, other):
            line.open()
            line.init()
            for _ in range(20):  # at least one push
                line.step()
        assert (service.status.workers, service.status.workers_by_shared_memory) == (2, 2)
        first, _ = sorted(service.rlx_server.children(), key=lambda process: process.create_time())
        first.send_signal(signal.SIGKILL)
        wait_until(lambda: service.status.workers == 1, "the killed worker is not counted", SILENCE / 2)
        other.step()
        assert service.status.workers == 1
        with Line(service.address) as restarted:
            restarted.open()
            restarted.init()
            assert service.status.workers == 2


def started_with_grpc(processes: Processes, tmp_path: Path) -> Service:
    service = Service(processes, tmp_path)
    service.rlx_server.stop()
    service.start_rlx_server("127.0.0.1:0", parameter_server=service.parameter_server_address)
    return service


@pytest.mark.slow
def test_killed_grpc_worker_is_soon_no_longer_counted(processes: Processes, tmp_path: Path) -> None:
    service = started_with_grpc(processes, tmp_path)
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
def test_killed_grpc_worker_is_replaced_when_client_reconnects(processes: Processes, tmp_path: Path) -> None:
    service = started_with_grpc(processes, tmp_path)
    with Line(service.address) as killed:
        session = killed.open(session_id="s1").session_id
        killed.init()
        for _ in range(20):
            killed.step()
        assert (service.status.workers, service.status.workers_by_shared_memory) == (1, 0)
        (worker,) = service.rlx_server.children()
        worker.send_signal(signal.SIGKILL)
    with Line(service.address) as restarted:
        restarted.open(session_id=session)
        restarted.init()
        assert service.status.workers == 1
