"""Learning rates by range of the flat vector."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from relaax.nn.recycled_memory import own_memory
from relaax.optim import host_optimizers
from relaax.optim.learning_rates import check_rate_factors, cut_rate_factors, factor_vector
from relaax.optim.optimizers import (
    AdaGrad,
    Adam,
    Add,
    FlatVariable,
    Momentum,
    Optimizer,
    OptimizerSpec,
    RMSProp,
    scaled,
)
from relaax.optim.vector import FlatVector, HostVector, Vector
from support.parameter_servers import Descent

pytestmark = pytest.mark.checks("relaax/optim")

EVERY: list[OptimizerSpec] = [RMSProp(), RMSProp(centered=True), Momentum(), AdaGrad(), Adam(), Add(), Descent()]
SIZE = 37
FACTORS = ((11, 1.0), (1, 0.0), (20, 3.5), (5, 0.25))
UPDATES = 20
ROUNDING = 5e-6

on_both = pytest.mark.parametrize("on_device", [False, pytest.param(True, marks=pytest.mark.slow)])


def vector_and_optimizer(spec: OptimizerSpec, factors: Any, on_device: bool) -> tuple[Vector, Optimizer[Any]]:
    initial = np.linspace(-1, 1, SIZE, dtype=np.float32)
    if on_device:
        return FlatVariable(initial), scaled(spec.create(SIZE), factors)
    return HostVector(initial), host_optimizers.create(spec, SIZE, factors)


def steps(spec: OptimizerSpec, factors: Any, on_device: bool) -> tuple[FlatVector, dict[str, Any]]:
    """Return the sum of all steps and the slots after some updates."""
    vector, optimizer = vector_and_optimizer(spec, factors, on_device)
    random, initial = np.random.default_rng(0), vector.snapshot().copy()
    for _ in range(UPDATES):
        optimizer.apply(vector, random.standard_normal(SIZE).astype(np.float32), 0.003)
    return vector.snapshot() - initial, {name: np.array(slot) for name, slot in optimizer.slots().items()}


@on_both
@pytest.mark.parametrize("spec", EVERY, ids=lambda spec: repr(spec)[:28])
def test_steps_are_scaled_and_slots_are_not(spec: OptimizerSpec, on_device: bool) -> None:
    plain, slots = steps(spec, (), on_device)
    found, found_slots = steps(spec, FACTORS, on_device)
    np.testing.assert_allclose(found, plain * factor_vector(FACTORS), rtol=1e-5, atol=ROUNDING)
    assert found[11] == 0, "a factor of 0 freezes"
    assert found_slots.keys() == slots.keys()
    for name, slot in slots.items():
        np.testing.assert_array_equal(found_slots[name], slot)


def test_two_updates_of_momentum_by_hand() -> None:
    # m = 0.5 * 4 = 2, then 0.5 * 2 + 0.5 * 4 = 3. The rate is 0.1, and the factors are 1, 10 and 0.
    vector = HostVector(np.zeros(3, np.float32))
    optimizer = host_optimizers.create(Momentum(0.5), 3, ((1, 1.0), (1, 10.0), (1, 0.0)))
    for expected in ([-0.2, -2, 0], [-0.5, -5, 0]):
        optimizer.apply(vector, np.full(3, 4, np.float32), 0.1)
        np.testing.assert_allclose(vector.snapshot(), expected, rtol=1e-6)


def test_snapshot_contains_every_range() -> None:
    vector, optimizer = vector_and_optimizer(Adam(), FACTORS, on_device=False)
    assert isinstance(vector, HostVector)
    optimizer.apply(vector, np.ones(SIZE, np.float32), 0.1)
    copied = vector.snapshot()
    vector.move_to(own_memory(SIZE))  # from here, a snapshot is read from the values
    np.testing.assert_array_equal(copied, vector.snapshot())


@pytest.mark.parametrize("spec", EVERY, ids=lambda spec: repr(spec)[:28])
def test_saved_slots_continue_with_other_factors(spec: OptimizerSpec) -> None:
    gradient = np.ones(SIZE, np.float32)
    first, optimizer = vector_and_optimizer(spec, FACTORS, on_device=False)
    optimizer.apply(first, gradient, 0.1)
    second, plain = vector_and_optimizer(spec, (), on_device=False)
    plain.apply(second, gradient, 0.1)
    _, restored = vector_and_optimizer(spec, (), on_device=False)
    restored.restore(optimizer.slots())
    first.assign(second.snapshot())
    restored.apply(first, gradient, 0.1)
    plain.apply(second, gradient, 0.1)
    np.testing.assert_array_equal(first.snapshot(), second.snapshot())


@pytest.mark.parametrize(("start", "end"), [(0, SIZE), (0, 11), (5, 12), (11, 12), (12, 32), (30, 37)])
def test_cut_factors_are_those_of_the_elements(start: int, end: int) -> None:
    cut = cut_rate_factors(FACTORS, start, end)
    found = factor_vector(cut) if cut else np.ones(end - start)
    np.testing.assert_array_equal(found, factor_vector(FACTORS)[start:end])


def test_factors_of_1_are_no_factors() -> None:
    assert check_rate_factors([(3, 1), (4, 1.0)], 7) == ()
    assert check_rate_factors((), 7) == ()
    assert cut_rate_factors(FACTORS, 0, 11) == ()


@pytest.mark.parametrize(
    ("factors", "sentence"),
    [
        ([(3, 1.0), (3, 2.0)], "covers 6 numbers, but there are 7 parameters"),
        ([(0, 1.0), (7, 2.0)], "a length of learning_rates must be an int of at least 1, not 0"),
        ([(7.0, 1.0)], "a length of learning_rates must be an int of at least 1, not 7.0"),
        ([(7, -0.5)], "must be a finite number of at least 0, not -0.5"),
        ([(7, math.nan)], "must be a finite number of at least 0, not nan"),
        ([(7, "1")], "must be a finite number of at least 0, not '1'"),
    ],
)
def test_wrong_factors_are_refused(factors: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_rate_factors(factors, 7)
