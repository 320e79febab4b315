"""The soft target network of a shard: a moving average of its parameters, renewed by its own updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import TargetInterval
from relaax.algorithm_base.config import Schedule
from relaax.nn.recycled_memory import own_memory
from relaax.optim.optimizers import Adam, RMSProp
from relaax.optim.vector import HostVector
from relaax.server.parameter_server.shard.shard import Push, Shard

pytestmark = pytest.mark.checks("relaax/server")

ROUNDING = 1e-6


def push(number: int, gradient: Any, **changes: Any) -> Push:
    return Push("w", number, number - 1, gradient, 1, 1, 0, **changes)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"updates": 1, "tau": 0}, "tau of a TargetInterval must be a number above 0 and at most 1, not 0"),
        ({"updates": 1, "tau": 1.1}, "at most 1, not 1.1"),
        ({"updates": 1, "tau": float("nan")}, "at most 1, not nan"),
        ({"updates": 1, "tau": True}, "at most 1, not True"),
        ({"frames": 9, "tau": 0.5}, "tau below 1 needs a TargetInterval in updates: use updates=1, tau=0.5"),
    ],
)
def test_invalid_tau_is_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TargetInterval(**wrong)


@pytest.mark.parametrize("on_device", [False, pytest.param(True, marks=pytest.mark.slow)])  # it loads TensorFlow
@pytest.mark.parametrize(("updates", "tau"), [(1, 0.005), (1, 0.9), (3, 0.25)])
@pytest.mark.parametrize("start", [0, 5])
def test_soft_target_is_the_moving_average(on_device: bool, updates: int, tau: float, start: int) -> None:
    random = np.random.default_rng(1)
    initial = random.standard_normal(101).astype(np.float32)
    interval = TargetInterval(updates=updates, tau=tau)
    tested = Shard(initial, Adam(), Schedule(0.1), start=start, target=interval, on_device=on_device)
    expected = initial.astype(np.float64)
    for number in range(1, 31):
        applied = tested.push(push(number, random.standard_normal(101).astype(np.float32)))
        assert applied.parameters is not None and applied.target is not None
        if number % updates == 0:
            expected += tau * (applied.parameters - expected)
        assert applied.target_generation == number // updates
        np.testing.assert_allclose(applied.target.vector, expected, rtol=0, atol=ROUNDING)
        assert not applied.target.vector.flags.writeable


def test_discarded_gradients_do_not_move_the_soft_target() -> None:
    tested = Shard(np.zeros(2, np.float32), Adam(), Schedule(0.1), target=TargetInterval(updates=1, tau=0.5))
    tested.push(push(1, np.ones(2, np.float32)))
    before = tested.target
    tested.push(Push("w", 2, 1, np.array([np.nan, 1], np.float32), 9, 9, 0))
    tested.push(Push("w", 3, 1, None, 9, 9, 0))
    tested.push(Push("w", 4, 1, None, 9, 9, 0, withheld=True))
    tested.advance_target(7)
    assert tested.target is before


def test_soft_target_follows_shared_memory() -> None:
    tested = Shard(np.zeros(2, np.float32), RMSProp(), Schedule(0.1), target=TargetInterval(updates=1, tau=0.5))
    live = tested.share(own_memory).vectors[0]
    targets = []
    for number in (1, 2, 3):
        live += 4
        applied = tested.push(push(number, None, applied=True))
        assert applied.target is not None
        targets.append(applied.target.vector.tolist())
    assert targets == [[2, 2], [5, 5], [8.5, 8.5]]


def test_memory_of_unread_targets_is_reused() -> None:
    allocated: list[int] = []

    def counted(size: int) -> Any:
        allocated.append(size)
        return own_memory(size)

    vector = HostVector(np.zeros(4, np.float32), counted)
    target = vector.snapshot()
    for number in range(50):
        vector.assign(np.full(4, number, np.float32))
        vector.snapshot()
        target = vector.blended(target, 0.5)
    assert len(allocated) <= 4, "one of the parameters, one of the target network, and the ones before"
