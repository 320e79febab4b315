from __future__ import annotations

from typing import Any, cast

import pytest

from relaax.server.command.termination import Reason
from relaax.server.parameter_server.coordination.coordinator import Alone
from relaax.server.parameter_server.service.core import ParameterServerCore


def alone() -> Alone:
    return Alone(cast(ParameterServerCore, None))


def test_only_shard_serves_from_the_start() -> None:
    coordinator, serving = alone(), list[bool]()
    coordinator.on_serving = serving.append
    coordinator.start()
    assert serving == [True]


@pytest.mark.parametrize("safe", [True, False])
def test_only_shard_stops_calls_before_it_saves(safe: bool) -> None:
    done: list[str] = []

    def save() -> bool:
        done.append("save")
        return safe

    assert alone().stop(Reason.TERMINATED, save, lambda: done.append("stop")) is safe
    assert done == ["stop", "save"]


@pytest.mark.parametrize("reason", [Reason.SUPERSEDED, Reason.REFUSED])
def test_refused_server_does_not_save(reason: Reason) -> None:
    def save() -> Any:
        raise AssertionError("a refused server must not save")

    assert not alone().stop(reason, save, lambda: None)


def test_missing_store_gives_no_checkpointer() -> None:
    def create(*_: Any, **__: Any) -> Any:
        raise AssertionError("there is no store")

    assert alone().checkpointer(create, None) is None
