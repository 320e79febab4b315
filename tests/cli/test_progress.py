"""Progress is read from real parameter servers, which come and go."""

from __future__ import annotations

from pathlib import Path

from relaax.cli.run.progress import ProgressReader
from support.parameter_servers import parameter_client, registration, running


def train(address: str, env_steps: int) -> None:
    with parameter_client(address) as bridge:
        bridge.register(registration())
        bridge.push(None, env_steps=env_steps)


def test_a_parameter_server_that_is_back_is_heard_at_once(tmp_path: Path) -> None:
    reader = ProgressReader()
    with running(directory=tmp_path) as server:
        address = server.address
        train(address, 10)
        assert reader.poll(address).global_step == 10
    for _ in range(3):
        assert reader.poll(address).global_step == 10, "the last answer stands while it is away"
    with running(directory=tmp_path, address=address) as server:
        train(server.address, 5)
        assert reader.poll(address).global_step == 15
    reader.close()


def test_a_parameter_server_at_another_address_is_asked_there() -> None:
    reader = ProgressReader()
    with running() as first, running() as second:
        train(first.address, 10)
        train(second.address, 20)
        assert [reader.poll(server.address).global_step for server in (first, second, first)] == [10, 20, 10]
    reader.close()
    assert reader.latest.global_step == 10
