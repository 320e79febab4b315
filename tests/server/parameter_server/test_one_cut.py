"""A checkpoint holds an update as a whole, gradient and episodes, or not at all: the one shard of a model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import pytest

from relaax.parameters.client import ParameterClient
from relaax.server.checkpoints.checkpointing import CheckpointLate, ModelState
from relaax.server.parameter_server.service import core as core_module
from support.parameter_servers import Running, gradient, parameter_client, registration, running

LONG_ENOUGH = 0.5
"""Seconds in which what nothing holds up has happened; what is held up has not, however long one waits."""


@pytest.fixture
def server() -> Iterator[Running]:
    with running() as started:
        yield started


@pytest.fixture
def client(server: Running) -> Iterator[ParameterClient]:
    with parameter_client(server.address) as connected:
        connected.register(registration())
        connected.pull()
        yield connected


def push(client: ParameterClient) -> None:
    """An update of ten steps and one episode."""
    client.metrics.episode(7.0, 10)
    client.push(gradient(1), env_steps=10)


def meanwhile(monkeypatch: pytest.MonkeyPatch, target: object, name: str, happens: Callable[[], None]) -> None:
    """Let something happen right before a method's first call."""
    method, begun = getattr(target, name), threading.Event()

    def called(*arguments: Any, **options: Any) -> Any:
        if not begun.is_set():
            begun.set()
            happens()
        return method(*arguments, **options)

    monkeypatch.setattr(target, name, called)


def whole_updates(state: ModelState | None) -> int:
    """How many updates the state holds; each with its steps, its number in the ledger, and its episode."""
    assert state is not None
    (shard,) = state.manifest["shards"]
    updates = shard["version"]
    assert state.parts["shard-0"]["parameters"][0] == -updates
    assert state.global_step == 10 * updates
    assert list(shard["ledger"].values()) == ([[updates, 0, 0]] if updates else [])
    assert state.manifest["returns"]["episodes"] == updates
    assert state.manifest["mean_return"] == (7.0 if updates else None)
    return int(updates)


@pytest.mark.parametrize("method", ["progress", "returns_as_json"])
def test_a_push_that_comes_between_the_copies_is_in_none(
    server: Running, client: ParameterClient, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    with futures.ThreadPoolExecutor() as threads:
        pushed = threading.Event()

        def comes() -> None:
            threads.submit(push, client).add_done_callback(lambda _: pushed.set())
            assert not pushed.wait(LONG_ENOUGH), "it waits for the cut"

        meanwhile(monkeypatch, server.core.metrics, method, comes)
        assert whole_updates(server.core.cut()) == 0
        assert pushed.wait(10)
    assert whole_updates(server.core.cut()) == 1


def test_an_update_under_way_is_waited_for(
    server: Running, client: ParameterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with futures.ThreadPoolExecutor() as threads:
        states = []

        def cut() -> None:
            future = threads.submit(server.core.cut)
            states.append(future)
            cutting.set()
            with pytest.raises(futures.TimeoutError):
                future.result(LONG_ENOUGH)

        cutting = threading.Event()
        meanwhile(monkeypatch, server.core.metrics, "episodes", cut)
        push(client)
        assert cutting.is_set()
        assert whole_updates(states[0].result(10)) == 1


def test_an_update_that_takes_too_long_makes_it_late_and_stops_nobody(
    server: Running, client: ParameterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "CUT", 0.05)

    def cut() -> None:
        with pytest.raises(CheckpointLate, match="updates did not pause within"):
            server.core.cut()

    meanwhile(monkeypatch, server.core.metrics, "episodes", cut)
    push(client)
    push(client)
    assert server.version == 2
