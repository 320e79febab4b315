from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from relaax.tf.flat_variable import FlatVariable
from relaax.tf.optimizers import AdaGrad, Adam, Add, Momentum, OptimizerSpec, RMSProp

EVERY: list[OptimizerSpec] = [RMSProp(), Momentum(), AdaGrad(), Adam(), Add()]


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_rmsprop_keeps_epsilon_inside_the_root() -> None:
    # g = 0.1 * 9 = 0.9 and 0.1 * 16 = 1.6; with ε = 0.1 the roots are 1 and √1.7.
    parameters = FlatVariable(vector(1.0, 2.0))
    optimizer = RMSProp(decay=0.9, epsilon=0.1).create(2)
    optimizer.apply(parameters, vector(3.0, -4.0), 0.5)
    np.testing.assert_allclose(parameters.snapshot(), [1 - 0.5 * 3, 2 + 0.5 * 4 / np.sqrt(1.7)], rtol=1e-6)
    np.testing.assert_allclose(optimizer.slots()["mean_square"], [0.9, 1.6], rtol=1e-6)
    # Second step: g = 0.9 * 0.9 + 0.1 * 1 = 0.91, no momentum of the first.
    optimizer.apply(parameters, vector(1.0, 0.0), 0.5)
    np.testing.assert_allclose(parameters.snapshot(), [-0.5 - 0.5 / np.sqrt(1.01), 2 + 2 / np.sqrt(1.7)], rtol=1e-5)


def test_adam_corrects_its_bias_and_keeps_epsilon_outside_the_root() -> None:
    # Corrected moments of the first step are Δθ and Δθ²: with ε = 1 the step is η·Δθ / (|Δθ| + √(1 − β2)-scaled ε).
    parameters = FlatVariable(vector(0.0))
    optimizer = Adam(beta1=0.9, beta2=0.99, epsilon=0.3).create(1)
    mean = square = theta = 0.0
    for step, grad in enumerate((2.0, -1.0, 0.5), start=1):
        optimizer.apply(parameters, vector(grad), 0.1)
        mean, square = 0.9 * mean + 0.1 * grad, 0.99 * square + 0.01 * grad**2
        rate = 0.1 * np.sqrt(1 - 0.99**step) / (1 - 0.9**step)
        theta -= rate * mean / (np.sqrt(square) + 0.3)
    np.testing.assert_allclose(parameters.snapshot(), [theta], rtol=1e-5)


def test_momentum_is_a_mean_of_gradients() -> None:
    # m = 0.2 * 5 = 1, then 0.8 * 1 + 0.2 * (-2) = 0.4, then 0.8 * 0.4 = 0.32.
    parameters = FlatVariable(vector(1.0))
    optimizer = Momentum(momentum=0.8).create(1)
    for grad, expected in ((5.0, 0.5), (-2.0, 0.3), (0.0, 0.14)):
        optimizer.apply(parameters, vector(grad), 0.5)
        np.testing.assert_allclose(parameters.snapshot(), [expected], rtol=1e-6)
    np.testing.assert_allclose(optimizer.slots()["momentum"], [0.32], rtol=1e-6)


def test_a_mean_of_gradients_goes_on_under_another_momentum() -> None:
    # m = 0.01 * 100 = 1 with α = 0.99; resumed with α = 0.5 and a gradient of 0 it is 0.5, and not 50 times that.
    first = Momentum(momentum=0.99).create(1)
    first.apply(FlatVariable(vector(0.0)), vector(100.0), 0.1)
    second, parameters = Momentum(momentum=0.5).create(1), FlatVariable(vector(0.0))
    second.restore(first.slots())
    second.apply(parameters, vector(0.0), 0.1)
    np.testing.assert_allclose(parameters.snapshot(), [-0.05], rtol=1e-5)


def test_without_momentum_it_is_gradient_descent() -> None:
    parameters = FlatVariable(vector(1.0, 2.0))
    optimizer = Momentum(momentum=0.0).create(2)
    for _ in range(2):
        optimizer.apply(parameters, vector(1.0, -4.0), 0.25)
    np.testing.assert_array_equal(parameters.snapshot(), [0.5, 4.0])


def test_adagrad_divides_by_the_root_of_the_sum_of_squares() -> None:
    # Sums of squares: 9, then 25; 16, then 16. With ε = 1 the divisors are 4, then 6, and 5.
    parameters = FlatVariable(vector(1.0, 2.0))
    optimizer = AdaGrad(epsilon=1.0).create(2)
    optimizer.apply(parameters, vector(3.0, -4.0), 0.5)
    np.testing.assert_allclose(parameters.snapshot(), [1 - 0.5 * 3 / 4, 2 + 0.5 * 4 / 5], rtol=1e-6)
    optimizer.apply(parameters, vector(4.0, 0.0), 0.5)
    np.testing.assert_allclose(parameters.snapshot(), [0.625 - 0.5 * 4 / 6, 2.4], rtol=1e-6)
    np.testing.assert_allclose(optimizer.slots()["square_sum"], [25, 16], rtol=1e-6)


def test_an_element_without_gradients_stays_with_adagrad() -> None:
    parameters = FlatVariable(vector(1.0, 1.0))
    AdaGrad().create(2).apply(parameters, vector(0.0, 1e-3), 0.5)
    assert parameters.snapshot()[0] == 1.0


def test_an_update_is_added_whatever_the_learning_rate() -> None:
    parameters = FlatVariable(vector(1.0, 2.0))
    before = parameters.snapshot()
    Add().create(2).apply(parameters, vector(0.5, -4.0), 0.001)
    np.testing.assert_array_equal(parameters.snapshot(), [1.5, -2.0])
    np.testing.assert_array_equal(before, [1.0, 2.0])


@pytest.mark.parametrize("spec", EVERY)
def test_restored_slots_continue_to_the_byte(spec: OptimizerSpec) -> None:
    random = np.random.default_rng(0)
    first, second = (random.standard_normal(50).astype(np.float32) for _ in range(2))
    parameters, optimizer = FlatVariable.zeros(50), spec.create(50)
    optimizer.apply(parameters, first, 0.1)
    copied, other = FlatVariable(parameters.snapshot()), spec.create(50)
    other.restore(optimizer.slots())
    optimizer.apply(parameters, second, 0.1)
    other.apply(copied, second, 0.1)
    assert parameters.snapshot().tobytes() == copied.snapshot().tobytes()
    assert {k: v.tobytes() for k, v in optimizer.slots().items()} == {k: v.tobytes() for k, v in other.slots().items()}


@pytest.mark.parametrize("spec", EVERY)
def test_slots_of_another_optimizer_or_size_are_refused(spec: OptimizerSpec) -> None:
    if spec != Add():
        with pytest.raises(ValueError, match=r"has the slots .*\(3,\).* not .*\(4,\)"):
            spec.create(3).restore(spec.create(4).slots())
    with pytest.raises(ValueError, match="has the slots"):
        spec.create(3).restore({"another": vector(1, 2, 3)})


@pytest.mark.parametrize("spec", EVERY)
def test_a_snapshot_never_changes(spec: OptimizerSpec) -> None:
    initial = np.arange(1000, dtype=np.float32)
    parameters, optimizer = FlatVariable(initial), spec.create(1000)
    before, slots = parameters.snapshot(), optimizer.slots()
    assert not before.flags.writeable
    for _ in range(3):
        optimizer.apply(parameters, -np.ones(1000, np.float32), 0.1)
    np.testing.assert_array_equal(before, np.arange(1000))
    np.testing.assert_array_equal(initial, np.arange(1000))
    assert all(not slot.any() for slot in slots.values())
    assert (parameters.snapshot()[0] < 0) == (spec == Add())


def test_importing_runs_no_operation() -> None:
    # Threads are what a fork cannot carry over: TensorFlow starts them with its first operation.
    code = "import os, relaax.tf.optimizers; print(len(os.listdir('/proc/self/task')))"
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)}
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert answer.stdout.strip() == "1", answer.stderr
