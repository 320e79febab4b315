from __future__ import annotations

from typing import Any, cast

import pytest

from relaax.server.command.termination import Reason
from relaax.server.parameter_server.coordination.coordinator import Alone
from relaax.server.parameter_server.service.core import ParameterServerCore


def alone() -> Alone:
    return Alone(cast(ParameterServerCore, None))


def test_the_only_shard_serves_from_the_start() -> None:
    coordinator, told = alone(), list[bool]()
    coordinator.on_serving = told.append
    coordinator.start()
    assert told == [True]


@pytest.mark.parametrize("safe", [True, False])
def test_the_only_shard_takes_no_calls_before_it_saves(safe: bool) -> None:
    done: list[str] = []

    def save() -> bool:
        done.append("save")
        return safe

    assert alone().stop(Reason.TERMINATED, save, lambda: done.append("stop")) is safe
    assert done == ["stop", "save"]


@pytest.mark.parametrize("reason", [Reason.SUPERSEDED, Reason.REFUSED])
def test_a_server_that_was_refused_saves_nothing(reason: Reason) -> None:
    def save() -> Any:
        raise AssertionError("nothing is saved")

    assert not alone().stop(reason, save, lambda: None)


def test_without_a_store_nothing_saves_the_model() -> None:
    def create(*_: Any, **__: Any) -> Any:
        raise AssertionError("there is nothing to save to")

    assert alone().checkpointer(create, None) is None
