from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as pb_grpc
from relaax.parameters.interfaces import ParameterServerError
from relaax.server.parameter_server.command.server import FAMILIES
from relaax.transport.segments import SUPPORTED
from support.metrics_page import documented_for_prometheus
from support.parameter_server_processes import start, trained, worker, write_configuration
from support.parameter_servers import parameter_client, registration
from support.processes import Processes
from support.scrape import health, scraped, status_url

pytestmark = pytest.mark.checks("relaax/server", "relaax/metrics")

PREFIX = "relaax_parameter_server_"


def test_documentation_lists_all_metrics() -> None:
    assert documented_for_prometheus(PREFIX) == {family.name for family in FAMILIES}


def test_metrics_count_a_training(processes: Processes, tmp_path: Path) -> None:
    config = write_configuration(tmp_path)
    server, address = start(processes, config, "--status-bind", "127.0.0.1:0")
    url = status_url(server)
    code, before = health(url)
    assert (code, before["serving"], before["server"]) == (200, True, "relaax-parameter-server")
    assert f"{PREFIX}mean_return" not in scraped(url), "no episode has ended"
    with parameter_client(address, transport="auto") as client:
        client.register(worker(config))
        trained(client, 3)
        client.metrics.episode(12.5, 7)
        client.push(None, 10)
        with parameter_client(address) as stranger, pytest.raises(ParameterServerError):
            stranger.register(registration())  # another configuration
        values = scraped(url)
    assert values[f"{PREFIX}serving"] == 1
    assert values[f"{PREFIX}global_step"] == 40
    assert values[f"{PREFIX}updates_total"] == 3
    assert values[f"{PREFIX}episodes_total"] == 1
    assert values[f"{PREFIX}mean_return"] == 12.5
    assert values[f"{PREFIX}workers"] == 1
    assert values[f'{PREFIX}discarded_total{{reason="stale"}}'] == 0
    assert values[f'{PREFIX}calls_total{{code="OK",method="Push"}}'] == 4
    assert values[f'{PREFIX}pushes_total{{bridge="shared_memory"}}'] == 4 * SUPPORTED
    assert values[f'{PREFIX}pushes_total{{bridge="grpc"}}'] == 4 * (not SUPPORTED)
    assert values[f"{PREFIX}workers_by_shared_memory"] == SUPPORTED
    refused = [name for name in values if 'method="Register"' in name and 'code="OK"' not in name]
    assert len(refused) == 1 and values[refused[0]] == 1
    assert values[f"{PREFIX}checkpoint_failures_total"] == 0
    assert values["process_start_time_seconds"] == pytest.approx(time.time(), abs=600)
    assert health(url)[1]["global_step"] == 40
    assert server.stop() == 0
    with pytest.raises(OSError):
        health(url)


@pytest.mark.slow
def test_repeated_pushes_are_counted_by_incarnation(processes: Processes, tmp_path: Path) -> None:
    config = write_configuration(tmp_path)
    register = pb.RegisterRequest(
        worker_id="0" * 32, environments=1, fingerprint=worker(config).fingerprint, role=pb.ROLE_TRAIN
    )
    push = pb.PushRequest(worker_id="0" * 32, push_id=1, env_steps=10)

    def repeated(url: str) -> list[float]:
        name = f"{PREFIX}pushes_repeated_total"
        return [scraped(url)[f'{name}{{incarnation="{incarnation}"}}'] for incarnation in ("same", "earlier")]

    server, address = start(processes, config, "--status-bind", "127.0.0.1:0")
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.ParameterServerServiceStub(channel)
        push.incarnation = stub.Register(register).incarnation
        stub.Push(push)
        assert repeated(status_url(server)) == [0, 0]
        assert {stub.Push(push).global_step for _ in range(2)} == {10}
        assert repeated(status_url(server)) == [2, 0]
    assert server.stop() == 0
    server, address = start(processes, config, "--status-bind", "127.0.0.1:0")
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.ParameterServerServiceStub(channel)
        assert stub.Push(push).discard == pb.DISCARD_UNSPECIFIED, "the checkpoint has this push"
        push.push_id = 2
        assert stub.Push(push).discard == pb.DISCARD_INCARNATION
        assert repeated(status_url(server)) == [0, 1]


def test_public_status_port_is_refused(processes: Processes, tmp_path: Path) -> None:
    server = processes.start(
        "relaax-parameter-server", "--config", write_configuration(tmp_path), "--status-bind", "0.0.0.0:0"
    )
    assert server.wait(60) == 2
    assert "status_bind 0.0.0.0:0 can be reached from other machines" in server.stderr
