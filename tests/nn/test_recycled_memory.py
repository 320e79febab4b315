"""Reused memory: never while a reference to it exists."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.nn.recycled_memory import VectorPool, own_memory
from relaax.optim.host_optimizers import create
from relaax.optim.optimizers import AdaGrad, Adam, Add, Momentum, OptimizerSpec, RMSProp
from relaax.optim.vector import HostVector


def test_referenced_vector_is_not_reused() -> None:
    pool = VectorPool(8, own_memory)
    held = [
        pool.acquire(),
        pool.acquire()[2:].view()[1:],
        memoryview(pool.acquire()),
        np.frombuffer(memoryview(pool.acquire())),
    ]
    for one in held:
        np.asarray(one)[...] = 0
    for value in range(20):
        pool.acquire().fill(value + 1.0)
    assert not any(np.asarray(one).any() for one in held)


def test_unreferenced_vectors_are_reused_and_few_are_kept() -> None:
    made = []

    def empty(size: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        made.append(size)
        return np.empty(size, np.float32)

    pool = VectorPool(8, empty, most_unused=2)
    for _ in range(10):
        pool.acquire().fill(1)
    assert made == [8]
    held = [pool.acquire() for _ in range(6)]
    assert len(made) == 6
    held.clear()
    pool.acquire()
    held = [pool.acquire() for _ in range(3)]
    assert len(made) == 7, "two unused vectors were kept"


def test_discarded_vector_is_not_reused() -> None:
    pool = VectorPool(8, own_memory)
    address = pool.acquire().__array_interface__["data"]
    kept = pool.acquire().view()
    pool.discard(kept)
    kept[...] = 3
    held = [pool.acquire() for _ in range(3)]
    for array in held:
        array.fill(1)
    assert (kept == 3).all()
    assert address == kept.__array_interface__["data"]


@pytest.mark.parametrize("spec", [RMSProp(), Momentum(), AdaGrad(), Adam(), Add()])
def test_snapshot_after_update_has_the_new_values(spec: OptimizerSpec) -> None:
    gradient = np.random.default_rng(0).standard_normal(37).astype(np.float32)
    vector, optimizer = HostVector(gradient), create(spec, 37)
    before = vector.snapshot()
    optimizer.apply(vector, gradient, 0.1)
    assert vector.snapshot().tobytes() == vector.shared().tobytes()
    assert not vector.snapshot().flags.writeable
    assert before.tobytes() == gradient.tobytes()


def test_snapshot_of_moved_vector_is_always_new() -> None:
    vector = HostVector(np.zeros(3, np.float32))
    vector.move_to(own_memory(3))
    live = vector.writable()
    first = vector.snapshot()
    live += 1
    vector.writable()[0] = 5
    np.testing.assert_array_equal(first, [0, 0, 0])
    np.testing.assert_array_equal(vector.snapshot(), [5, 1, 1])
