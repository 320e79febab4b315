from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from relaax.libraries import LIBRARY_VARIABLES
from relaax.optim import host_optimizers
from relaax.optim.optimizers import AdaGrad, Adam, Add, FlatVariable, Momentum, Optimizer, OptimizerSpec, RMSProp
from relaax.optim.vector import FlatVector, HostVector, Vector

pytestmark = pytest.mark.checks("relaax/optim")

EVERY: list[OptimizerSpec] = [RMSProp(), RMSProp(centered=True), Momentum(), AdaGrad(), Adam(), Add()]


class Place(NamedTuple):
    """Constructors of vectors and optimizers in one kind of memory."""

    vector: Callable[[FlatVector], Vector]
    optimizer: Callable[[OptimizerSpec, int], Optimizer[Any]]


DEVICE = Place(FlatVariable, lambda spec, size: spec.create(size))
HOST = Place(HostVector, host_optimizers.create)


@pytest.fixture(params=[DEVICE, HOST], ids=["device", "host"])
def place(request: pytest.FixtureRequest) -> Place:
    place: Place = request.param
    return place


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_rmsprop_has_epsilon_inside_the_root(place: Place) -> None:
    # g = 0.1 * 9 = 0.9 and 0.1 * 16 = 1.6; with ε = 0.1 the roots are 1 and √1.7.
    parameters = place.vector(vector(1.0, 2.0))
    optimizer = place.optimizer(RMSProp(decay=0.9, epsilon=0.1), 2)
    optimizer.apply(parameters, vector(3.0, -4.0), 0.5)
    np.testing.assert_allclose(parameters.snapshot(), [1 - 0.5 * 3, 2 + 0.5 * 4 / np.sqrt(1.7)], rtol=1e-6)
    np.testing.assert_allclose(optimizer.slots()["mean_square"], [0.9, 1.6], rtol=1e-6)
    # Second step: g = 0.9 * 0.9 + 0.1 * 1 = 0.91. The first step leaves no momentum.
    optimizer.apply(parameters, vector(1.0, 0.0), 0.5)
    np.testing.assert_allclose(parameters.snapshot(), [-0.5 - 0.5 / np.sqrt(1.01), 2 + 2 / np.sqrt(1.7)], rtol=1e-5)


def test_centered_rmsprop_divides_by_standard_deviation(place: Place) -> None:
    # Graves 2013, equations 38 to 41, in float64: n is the mean of squared gradients, g the mean of gradients.
    random = np.random.default_rng(3)
    decay, epsilon, rate = 0.95, 1.5e-7, 0.00025 / 4
    theta, n, g = random.standard_normal(200), np.zeros(200), np.zeros(200)
    initial = theta.copy()
    parameters = place.vector(theta.astype(np.float32))
    optimizer = place.optimizer(RMSProp(decay, epsilon, centered=True), 200)
    for _ in range(50):
        gradient = (2 + random.standard_normal(200)).astype(np.float32)  # the mean is not small
        n = decay * n + (1 - decay) * gradient.astype(np.float64) ** 2
        g = decay * g + (1 - decay) * gradient
        theta = theta - rate * gradient / np.sqrt(n - g**2 + epsilon)
        optimizer.apply(parameters, gradient, rate)
    np.testing.assert_allclose(parameters.snapshot() - initial, theta - initial, rtol=1e-3)
    assert np.abs(theta - initial).min() > 0.002
    np.testing.assert_allclose(optimizer.slots()["mean_square"], n, rtol=1e-5)
    np.testing.assert_allclose(optimizer.slots()["mean"], g, rtol=1e-5)


@pytest.mark.parametrize("size", [1.0, 39.7, 1e4])
def test_nearly_constant_gradients_have_no_negative_variance(place: Place, size: float) -> None:
    # Without the clamp, hundreds of these variances would be below zero by more than epsilon.
    random = np.random.default_rng(0)
    gradient = size * random.uniform(0.5, 1.5, 1000)
    parameters = place.vector(np.zeros(1000, np.float32))
    optimizer = place.optimizer(RMSProp(0.95, 1.5e-7, centered=True), 1000)
    for _ in range(500):
        optimizer.apply(parameters, (gradient * random.uniform(0.9999, 1.0001, 1000)).astype(np.float32), 1e-6)
    assert np.isfinite(parameters.snapshot()).all()


def test_centered_can_be_switched_on_and_off_when_resumed(place: Place) -> None:
    # Uncentered: n = 0.5 * 4 = 2. Centered: n = 0.5 * 2 + 0.5 * 16 = 9 and g = 0.5 * 4 = 2, so the divisor is √5.
    kinds = {centered: RMSProp(decay=0.5, epsilon=1e-9, centered=centered) for centered in (False, True)}
    first, second, third = (place.optimizer(kinds[centered], 1) for centered in (False, True, False))
    first.apply(place.vector(vector(0.0)), vector(2.0), 1.0)
    second.restore(first.slots())
    parameters = place.vector(vector(0.0))
    second.apply(parameters, vector(4.0), 1.0)
    np.testing.assert_allclose(parameters.snapshot(), [-4 / np.sqrt(5)], rtol=1e-6)
    third.restore(second.slots())
    np.testing.assert_allclose(third.slots()["mean_square"], [9.0])
    assert set(third.slots()) == {"mean_square"}


def test_adam_corrects_bias_and_has_epsilon_outside_root(place: Place) -> None:
    # The order of Kingma and Ba 2015, end of section 2: both corrections are in the rate, and ε is added to the root.
    parameters = place.vector(vector(0.0))
    optimizer = place.optimizer(Adam(beta1=0.9, beta2=0.99, epsilon=0.3), 1)
    mean = square = theta = 0.0
    for step, grad in enumerate((2.0, -1.0, 0.5), start=1):
        optimizer.apply(parameters, vector(grad), 0.1)
        mean, square = 0.9 * mean + 0.1 * grad, 0.99 * square + 0.01 * grad**2
        rate = 0.1 * np.sqrt(1 - 0.99**step) / (1 - 0.9**step)
        theta -= rate * mean / (np.sqrt(square) + 0.3)
    np.testing.assert_allclose(parameters.snapshot(), [theta], rtol=1e-5)


def test_momentum_is_a_mean_of_gradients(place: Place) -> None:
    # m = 0.2 * 5 = 1, then 0.8 * 1 + 0.2 * (-2) = 0.4, then 0.8 * 0.4 = 0.32.
    parameters = place.vector(vector(1.0))
    optimizer = place.optimizer(Momentum(momentum=0.8), 1)
    for grad, expected in ((5.0, 0.5), (-2.0, 0.3), (0.0, 0.14)):
        optimizer.apply(parameters, vector(grad), 0.5)
        np.testing.assert_allclose(parameters.snapshot(), [expected], rtol=1e-6)
    np.testing.assert_allclose(optimizer.slots()["momentum"], [0.32], rtol=1e-6)


def test_mean_of_gradients_continues_with_another_momentum(place: Place) -> None:
    # m = 0.01 * 100 = 1 with α = 0.99; resumed with α = 0.5 and a gradient of 0 it is 0.5, not 50 times as much.
    first = place.optimizer(Momentum(momentum=0.99), 1)
    first.apply(place.vector(vector(0.0)), vector(100.0), 0.1)
    second, parameters = place.optimizer(Momentum(momentum=0.5), 1), place.vector(vector(0.0))
    second.restore(first.slots())
    second.apply(parameters, vector(0.0), 0.1)
    np.testing.assert_allclose(parameters.snapshot(), [-0.05], rtol=1e-5)


def test_zero_momentum_is_gradient_descent(place: Place) -> None:
    parameters = place.vector(vector(1.0, 2.0))
    optimizer = place.optimizer(Momentum(momentum=0.0), 2)
    for _ in range(2):
        optimizer.apply(parameters, vector(1.0, -4.0), 0.25)
    np.testing.assert_array_equal(parameters.snapshot(), [0.5, 4.0])


def test_adagrad_divides_by_root_of_sum_of_squares(place: Place) -> None:
    # Sums of squares: 9, then 25; 16, then 16. With ε = 1 the divisors are 4, then 6, and 5.
    parameters = place.vector(vector(1.0, 2.0))
    optimizer = place.optimizer(AdaGrad(epsilon=1.0), 2)
    optimizer.apply(parameters, vector(3.0, -4.0), 0.5)
    np.testing.assert_allclose(parameters.snapshot(), [1 - 0.5 * 3 / 4, 2 + 0.5 * 4 / 5], rtol=1e-6)
    optimizer.apply(parameters, vector(4.0, 0.0), 0.5)
    np.testing.assert_allclose(parameters.snapshot(), [0.625 - 0.5 * 4 / 6, 2.4], rtol=1e-6)
    np.testing.assert_allclose(optimizer.slots()["square_sum"], [25, 16], rtol=1e-6)


def test_adagrad_keeps_elements_with_zero_gradient(place: Place) -> None:
    parameters = place.vector(vector(1.0, 1.0))
    place.optimizer(AdaGrad(), 2).apply(parameters, vector(0.0, 1e-3), 0.5)
    assert parameters.snapshot()[0] == 1.0


def test_add_ignores_the_learning_rate(place: Place) -> None:
    parameters = place.vector(vector(1.0, 2.0))
    before = parameters.snapshot()
    place.optimizer(Add(), 2).apply(parameters, vector(0.5, -4.0), 0.001)
    np.testing.assert_array_equal(parameters.snapshot(), [1.5, -2.0])
    np.testing.assert_array_equal(before, [1.0, 2.0])


@pytest.mark.parametrize("spec", EVERY)
def test_restored_slots_give_identical_updates(spec: OptimizerSpec, place: Place) -> None:
    random = np.random.default_rng(0)
    first, second = (random.standard_normal(50).astype(np.float32) for _ in range(2))
    parameters, optimizer = place.vector(np.zeros(50, np.float32)), place.optimizer(spec, 50)
    optimizer.apply(parameters, first, 0.1)
    copied, other = place.vector(parameters.snapshot()), place.optimizer(spec, 50)
    other.restore(optimizer.slots())
    optimizer.apply(parameters, second, 0.1)
    other.apply(copied, second, 0.1)
    assert parameters.snapshot().tobytes() == copied.snapshot().tobytes()
    assert {k: v.tobytes() for k, v in optimizer.slots().items()} == {k: v.tobytes() for k, v in other.slots().items()}


@pytest.mark.parametrize("spec", EVERY)
def test_slots_of_another_optimizer_or_size_are_refused(spec: OptimizerSpec, place: Place) -> None:
    if spec != Add():
        with pytest.raises(ValueError, match=r"needs the slots .*\(3,\).* not .*\(4,\)"):
            place.optimizer(spec, 3).restore(place.optimizer(spec, 4).slots())
    with pytest.raises(ValueError, match="needs the slots"):
        place.optimizer(spec, 3).restore({"another": vector(1, 2, 3)})


@pytest.mark.parametrize("spec", EVERY)
def test_updates_do_not_change_a_snapshot(spec: OptimizerSpec, place: Place) -> None:
    initial = np.arange(1000, dtype=np.float32)
    parameters, optimizer = place.vector(initial), place.optimizer(spec, 1000)
    before = parameters.snapshot()
    assert not before.flags.writeable
    for _ in range(3):
        optimizer.apply(parameters, -np.ones(1000, np.float32), 0.1)
    np.testing.assert_array_equal(before, np.arange(1000))
    np.testing.assert_array_equal(initial, np.arange(1000))
    assert (parameters.snapshot()[0] < 0) == (spec == Add())


@pytest.mark.parametrize("spec", EVERY)
def test_host_and_device_agree(spec: OptimizerSpec) -> None:
    random = np.random.default_rng(1)
    initial = random.standard_normal(1001).astype(np.float32)
    vectors, optimizers = (
        [kind(DEVICE), kind(HOST)]
        for kind in (lambda place: place.vector(initial), lambda place: place.optimizer(spec, 1001))
    )
    for _ in range(20):
        gradient = random.standard_normal(1001).astype(np.float32)
        gradient.flags.writeable = False  # like an array in a message
        for parameters, optimizer in zip(vectors, optimizers, strict=True):
            optimizer.apply(parameters, gradient, 0.01)
    device, host = (parameters.snapshot() for parameters in vectors)
    np.testing.assert_allclose(host, device, rtol=1e-5, atol=1e-6)
    assert np.abs(device - initial).max() > 0.01


def test_memory_of_unreferenced_snapshots_is_reused() -> None:
    parameters = HostVector(np.zeros(1000, np.float32))
    ones = np.ones(1000, np.float32)
    kept: list[Any] = []
    for number in range(10):
        snapshot = parameters.snapshot()
        # Slices and memory views keep the memory, like the whole array.
        kept.append([snapshot, snapshot[10:20], memoryview(snapshot)[10:20]][number % 3])
        del snapshot
        parameters.assign(parameters.shared() + ones)
    for number, part in enumerate(kept):
        assert set(np.asarray(part).tolist()) == {float(number)}
    kept.clear()
    del part
    addresses = set()
    for _ in range(10):
        addresses.add(parameters.snapshot().ctypes.data)
        parameters.assign(ones)
    assert len(addresses) == 1


def test_snapshot_is_copied_once_until_values_change() -> None:
    parameters = HostVector(np.zeros(3, np.float32))
    assert parameters.snapshot() is parameters.snapshot()


@pytest.mark.slow
def test_importing_runs_no_operation() -> None:
    # A fork loses threads. TensorFlow starts threads with its first operation.
    modules = "tensorflow, relaax.hosting.gradient_filters, relaax.nn.engine, relaax.optim.host_optimizers"
    code = f"import os, {modules}; print(len(os.listdir('/proc/self/task')))"
    environment = LIBRARY_VARIABLES | {"PYTHONPATH": ":".join(sys.path)}
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert answer.stdout.strip() == "1", answer.stderr
