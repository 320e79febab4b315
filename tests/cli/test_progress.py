"""`ProgressReader` with real parameter servers that stop and restart."""

from __future__ import annotations

from pathlib import Path

from relaax.cli.run.progress import ProgressReader
from support.parameter_servers import parameter_client, registration, running


def train(address: str, env_steps: int) -> None:
    with parameter_client(address) as client:
        client.register(registration())
        client.push(None, env_steps=env_steps)


def test_restarted_parameter_server_is_polled_at_once(tmp_path: Path) -> None:
    reader = ProgressReader()
    with running(directory=tmp_path) as server:
        address = server.address
        train(address, 10)
        assert reader.poll(address).global_step == 10
    for _ in range(3):
        assert reader.poll(address).global_step == 10, "the last reply is kept while the server is unavailable"
    with running(directory=tmp_path, address=address) as server:
        train(server.address, 5)
        assert reader.poll(address).global_step == 15
    reader.close()


def test_parameter_server_at_another_address_is_polled_there() -> None:
    reader = ProgressReader()
    with running() as first, running() as second:
        train(first.address, 10)
        train(second.address, 20)
        assert [reader.poll(server.address).global_step for server in (first, second, first)] == [10, 20, 10]
    reader.close()
    assert reader.latest.global_step == 10
