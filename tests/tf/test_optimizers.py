from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from relaax.tf.flat_variable import FlatVariable
from relaax.tf.optimizers import Adam, OptimizerSpec, RMSProp


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


@pytest.mark.parametrize("spec", [RMSProp(), Adam()])
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


@pytest.mark.parametrize("spec", [RMSProp(), Adam()])
def test_slots_of_another_optimizer_or_size_are_refused(spec: OptimizerSpec) -> None:
    with pytest.raises(ValueError, match=r"mean_square.*\(3,\)"):
        spec.create(3).restore(spec.create(4).slots())
    with pytest.raises(ValueError, match="has the slots"):
        spec.create(3).restore({"momentum": vector(1, 2, 3)})


def test_a_snapshot_never_changes() -> None:
    initial = np.arange(1000, dtype=np.float32)
    parameters, optimizer = FlatVariable(initial), RMSProp().create(1000)
    before, slots = parameters.snapshot(), optimizer.slots()
    assert not before.flags.writeable
    for _ in range(3):
        optimizer.apply(parameters, np.ones(1000, np.float32), 0.1)
    np.testing.assert_array_equal(before, np.arange(1000))
    np.testing.assert_array_equal(initial, np.arange(1000))
    np.testing.assert_array_equal(slots["mean_square"], np.zeros(1000))
    assert parameters.snapshot()[0] < 0


def test_importing_runs_no_operation() -> None:
    # Threads are what a fork cannot carry over: TensorFlow starts them with its first operation.
    code = "import os, relaax.tf.optimizers; print(len(os.listdir('/proc/self/task')))"
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)}
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert answer.stdout.strip() == "1", answer.stderr
