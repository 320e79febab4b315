"""Memory that is used again: never while anybody can read it."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.nn.recycled_memory import Recycled, own_memory
from relaax.optim.host_optimizers import create
from relaax.optim.optimizers import AdaGrad, Adam, Add, Momentum, OptimizerSpec, RMSProp
from relaax.optim.vector import HostVector


def test_what_somebody_has_is_not_given_again() -> None:
    recycled = Recycled(8, own_memory)
    held = [
        recycled.take(),
        recycled.take()[2:].view()[1:],
        memoryview(recycled.take()),
        np.frombuffer(memoryview(recycled.take())),
    ]
    for one in held:
        np.asarray(one)[...] = 0
    for value in range(20):
        recycled.take().fill(value + 1.0)
    assert not any(np.asarray(one).any() for one in held)


def test_what_nobody_has_is_given_again_and_little_of_it_kept() -> None:
    made = []

    def empty(size: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        made.append(size)
        return np.empty(size, np.float32)

    recycled = Recycled(8, empty, kept=2)
    for _ in range(10):
        recycled.take().fill(1)
    assert made == [8]
    held = [recycled.take() for _ in range(6)]
    assert len(made) == 6
    held.clear()
    recycled.take()
    held = [recycled.take() for _ in range(3)]
    assert len(made) == 7, "two were kept"


def test_what_is_forgotten_is_never_given_again() -> None:
    recycled = Recycled(8, own_memory)
    address = recycled.take().__array_interface__["data"]
    kept = recycled.take().view()
    recycled.forget(kept)
    kept[...] = 3
    held = [recycled.take() for _ in range(3)]
    for array in held:
        array.fill(1)
    assert (kept == 3).all()
    assert address == kept.__array_interface__["data"]


@pytest.mark.parametrize("spec", [RMSProp(), Momentum(), AdaGrad(), Adam(), Add()])
def test_an_update_leaves_a_snapshot_of_what_it_made(spec: OptimizerSpec) -> None:
    gradient = np.random.default_rng(0).standard_normal(37).astype(np.float32)
    vector, optimizer = HostVector(gradient), create(spec, 37)
    before = vector.snapshot()
    optimizer.apply(vector, gradient, 0.1)
    assert vector.snapshot().tobytes() == vector.shared().tobytes()
    assert not vector.snapshot().flags.writeable
    assert before.tobytes() == gradient.tobytes()


def test_where_others_write_too_every_snapshot_is_a_new_one() -> None:
    vector = HostVector(np.zeros(3, np.float32))
    vector.move(own_memory(3))
    live = vector.open()
    first = vector.snapshot()
    live += 1
    vector.open()[0] = 5
    np.testing.assert_array_equal(first, [0, 0, 0])
    np.testing.assert_array_equal(vector.snapshot(), [5, 1, 1])
