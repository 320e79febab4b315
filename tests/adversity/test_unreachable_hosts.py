"""Hosts that become unreachable. Each side notices this within the time that docs/troubleshoot.md states."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from relaax.server.rlx_server.connection.peer import VANISHED_SECONDS
from support.hosts import Host, two_hosts
from support.processes import Processes, Running, wait_until
from support.service import PARAMETER_SERVER, RLX_SERVER, write_service_config

pytestmark = [pytest.mark.slow, pytest.mark.checks("relaax/server", "relaax/rlx")]

GRPC_SECONDS = 30.0
"""Keepalive of relaax/transport/grpc_options.py: 20 s of silence, 10 s for an answer."""
SLACK = 60.0
"""Extra time for a busy machine; far below the timeout of TCP itself, at least 15 minutes."""

CLIENT = """
import sys, time
import gymnasium
import relaax.client

client = relaax.client.Client(
    sys.argv[1],
    observation_space=gymnasium.spaces.Box(-1, 1, (4,)),
    action_space=gymnasium.spaces.Discrete(2),
    response_timeout=float(sys.argv[2]),
    retry_seconds=0,
)
with client:
    state = [0.0] * 4
    client.init(state)
    print("playing", flush=True)
    if sys.argv[3] == "busy":
        try:
            while True:
                client.send(0.0, state)
        except relaax.client.Failure as failure:
            print("lost:", failure, flush=True)
    else:
        time.sleep(3600)
"""


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as pair:
        yield pair


def start_servers(processes: Processes, folder: Path, parameters: Host, rlx: Host) -> tuple[Running, str, Running, str]:
    config = write_service_config(folder)
    common = ("--config", str(config), "--allow-anonymous")
    server, address = processes.start_server(
        *parameters.command(*PARAMETER_SERVER), *common, "--bind", f"{parameters.address}:0"
    )
    rlx_server, rlx_address = processes.start_server(
        *rlx.command(*RLX_SERVER), *common, "--bind", f"{rlx.address}:0", "--parameter-server", address
    )
    return server, address, rlx_server, rlx_address


def start_client(processes: Processes, host: Host, address: str, timeout: float, manner: str) -> Running:
    client = processes.start(*host.command(sys.executable, "-c", CLIENT, address, str(timeout), manner))
    client.wait_for_line("playing")
    return client


def test_lost_rlx_server_host_is_noticed_by_both_sides(
    processes: Processes, tmp_path: Path, hosts: tuple[Host, Host]
) -> None:
    here, there = hosts
    server, _, rlx_server, address = start_servers(processes, tmp_path, here, there)
    client = start_client(processes, here, address, 5, "busy")
    (worker,) = rlx_server.children()
    there.vanish()
    client.wait_for_line("lost:", timeout=5 + SLACK)
    bound = GRPC_SECONDS + SLACK
    wait_until(
        lambda: not here.connections_to(there.address),
        "the server has closed the connections",
        timeout=bound,
        interval=0.2,
    )
    wait_until(
        lambda: not there.connections_to(here.address),
        "the worker has closed the connections",
        timeout=bound,
        interval=0.2,
    )
    wait_until(lambda: "is unavailable" in rlx_server.stderr or not worker.is_running(), "the worker has noticed")
    assert server.returncode is None
    assert rlx_server.returncode is None


@pytest.mark.usefixtures("skipped_by_short")
@pytest.mark.parametrize("manner", ["idle", "busy"])
def test_rlx_server_notices_a_lost_client_host(
    processes: Processes, tmp_path: Path, hosts: tuple[Host, Host], manner: str
) -> None:
    here, there = hosts
    _, _, rlx_server, address = start_servers(processes, tmp_path, here, here)
    start_client(processes, there, address, 600, manner)
    (worker,) = rlx_server.children()
    there.vanish()
    wait_until(lambda: not worker.is_running(), "its worker has ended", timeout=VANISHED_SECONDS + SLACK, interval=0.2)
    assert "the client disconnected without a bye" in rlx_server.stderr
    assert rlx_server.returncode is None


@pytest.mark.usefixtures("skipped_by_short")
def test_client_notices_a_lost_server_host(processes: Processes, tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    here, there = hosts
    _, _, _, address = start_servers(processes, tmp_path, here, here)
    client = start_client(processes, there, address, 5, "busy")
    here.vanish()
    client.wait_for_line("lost:", timeout=5 + SLACK)


@pytest.mark.usefixtures("skipped_by_short")
def test_worker_and_parameter_server_notice_lost_hosts(
    processes: Processes, tmp_path: Path, hosts: tuple[Host, Host]
) -> None:
    here, there = hosts
    server, _, rlx_server, rlx_address = start_servers(processes, tmp_path, here, there)
    start_client(processes, there, rlx_address, 600, "busy")
    assert here.connections_to(there.address) > 0
    assert there.connections_to(here.address) > 0
    begun = time.monotonic()
    there.vanish()
    bound = GRPC_SECONDS + SLACK
    wait_until(
        lambda: not here.connections_to(there.address),
        "the server has closed the connections",
        timeout=bound,
        interval=0.2,
    )
    wait_until(
        lambda: not there.connections_to(here.address),
        "the worker has closed the connections",
        timeout=bound,
        interval=0.2,
    )
    assert time.monotonic() - begun < 2 * bound
    assert server.returncode is None
    assert rlx_server.returncode is None
    wait_until(lambda: "is unavailable" in rlx_server.stderr, "the worker has logged it")
