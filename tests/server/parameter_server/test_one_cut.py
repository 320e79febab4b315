"""A checkpoint of one shard holds an update completely, with its gradient and episodes, or not at all."""

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
"""Seconds in which an operation finishes if it is not blocked."""


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
    """Push an update of ten steps and one episode."""
    client.metrics.episode(7.0, 10)
    client.push(gradient(1), env_steps=10)


def run_before(monkeypatch: pytest.MonkeyPatch, target: object, name: str, action: Callable[[], None]) -> None:
    """Call `action` right before the first call of a method."""
    method, called_before = getattr(target, name), threading.Event()

    def called(*arguments: Any, **options: Any) -> Any:
        if not called_before.is_set():
            called_before.set()
            action()
        return method(*arguments, **options)

    monkeypatch.setattr(target, name, called)


def count_updates(state: ModelState | None) -> int:
    """Return the number of updates in the state; check that each has its steps, its ledger entry and its episode."""
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
def test_push_during_the_copies_is_in_none_of_them(
    server: Running, client: ParameterClient, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    with futures.ThreadPoolExecutor() as threads:
        pushed = threading.Event()

        def push_in_thread() -> None:
            threads.submit(push, client).add_done_callback(lambda _: pushed.set())
            assert not pushed.wait(LONG_ENOUGH), "the push waits for the cut"

        run_before(monkeypatch, server.core.metrics, method, push_in_thread)
        assert count_updates(server.core.cut()) == 0
        assert pushed.wait(10)
    assert count_updates(server.core.cut()) == 1


def test_cut_waits_for_an_update_in_flight(
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
        run_before(monkeypatch, server.core.metrics, "episodes", cut)
        push(client)
        assert cutting.is_set()
        assert count_updates(states[0].result(10)) == 1


def test_slow_update_delays_only_the_checkpoint(
    server: Running, client: ParameterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "CUT", 0.05)

    def cut() -> None:
        with pytest.raises(CheckpointLate, match="updates did not pause within"):
            server.core.cut()

    run_before(monkeypatch, server.core.metrics, "episodes", cut)
    push(client)
    push(client)
    assert server.version == 2
