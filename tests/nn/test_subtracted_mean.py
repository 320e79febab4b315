"""The mean of pixels that all engines subtract from inputs of bytes."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.nn.host.engine import HostEngine
from relaax.nn.initialization import orthogonal_parameters
from relaax.nn.interfaces import Outputs
from relaax.nn.numpy_actor import NumpyActor
from relaax.nn.specification import Convolution, NetworkSpec
from relaax.nn.tensorflow_engine import TensorFlowEngine

HEADS = {"policy": 3, "value": 1}
SPECS = {
    "convolutions": NetworkSpec((13, 14, 3), HEADS, (7,), (Convolution(4, 5, 2), Convolution(3, 3, 1))),
    "partial blocks": NetworkSpec((11, 10, 2), HEADS, (7,), (Convolution(4, 4, 4),)),
    "flat": NetworkSpec((30,), HEADS, (7,)),
    "flat, by BLAS": NetworkSpec((3000,), HEADS, (200,)),
}
STEPS, ENVIRONMENTS = 4, 3


def squares(outputs: Outputs, _: slice) -> Outputs:
    """Return the derivative of half the sum of squares of all outputs."""
    return {head: output.copy() for head, output in outputs.items()}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_engines_subtract_the_mean_of_pixels(spec: NetworkSpec) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, (STEPS, ENVIRONMENTS, *spec.inputs), np.uint8)
    mean = rng.uniform(0, 255, spec.inputs).astype(np.float32)
    parameters = orthogonal_parameters(spec, 1, dict.fromkeys(HEADS, 1.0))
    state, restart = np.zeros((ENVIRONMENTS, 0), np.float32), np.zeros((STEPS, ENVIRONMENTS), np.bool_)
    reference = HostEngine(spec, np.float32, (STEPS, ENVIRONMENTS))
    reference.set_parameters(parameters)
    differences = (inputs - mean) / np.float32(255)
    expected = reference.act(differences[0], state)[0]
    gradient = reference.gradient(differences, state, restart, squares).copy()
    for engine in (HostEngine(spec, np.uint8, (STEPS, ENVIRONMENTS)), TensorFlowEngine(spec, np.uint8)):
        engine.set_parameters(parameters, mean)
        for head, output in engine.act(inputs[0], state, 0)[0].items():
            np.testing.assert_allclose(output, expected[head], rtol=1e-3, atol=1e-4)
        computed = engine.gradient(inputs, state, restart, squares)
        np.testing.assert_allclose(computed, gradient, rtol=2e-3, atol=2e-3)
        engine.set_parameters(parameters)
        without, _ = engine.act(inputs[0], state)
        assert all(not np.allclose(output, expected[head], atol=1e-2) for head, output in without.items())
    actor = NumpyActor(spec)
    actor.set_parameters(parameters, mean)
    for head, output in actor.act(inputs[0], state)[0].items():
        np.testing.assert_allclose(output, expected[head], rtol=1e-3, atol=1e-4)
