"""Derivatives by a network's inputs: the host's engine compared with TensorFlow's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from relaax.nn.host.engine import HostEngine
from relaax.nn.interfaces import Engine
from relaax.nn.specification import Convolution, NetworkSpec
from relaax.nn.tensorflow_engine import TensorFlowEngine

HEADS = {"first": 1, "second": 2}
GROUPS = (("first",), ("second",))
IMAGE = (7, 7, 2)
SPECS = {
    "small": NetworkSpec((5,), HEADS, (8,), activation="tanh"),
    "separate": NetworkSpec((17,), HEADS, (200, 100), groups=GROUPS),
    "heads only": NetworkSpec((4,), HEADS, (), groups=GROUPS),
    "streams": NetworkSpec((6,), HEADS, (16, 8), streams=True),
    "image": NetworkSpec(
        (7 * 7 * 2 + 3,), HEADS, (9,), (Convolution(3, 3, 2),), groups=GROUPS, image=IMAGE, side_width=6
    ),
}


def loss(outputs: Mapping[str, np.ndarray], part: slice) -> dict[str, np.ndarray]:
    """Return the derivative of a loss that depends on one of the heads only for some examples."""
    smaller = outputs["first"] < outputs["second"][:, :1]
    return {
        "first": (smaller * outputs["first"]).astype(np.float32),
        "second": (~smaller * np.cos(outputs["second"])).astype(np.float32),
    }


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("count", [1, 40, 300])
def test_engines_agree_on_derivatives_by_inputs(name: str, count: int) -> None:
    spec, rng = SPECS[name], np.random.default_rng(count)
    parameters = (0.3 * rng.normal(size=spec.layout().size)).astype(np.float32)
    inputs = rng.normal(size=(count, *spec.inputs)).astype(np.float32)
    engines: list[Engine] = [HostEngine(spec, np.float32, (1, None)), TensorFlowEngine(spec, np.float32)]
    found = []
    for engine in engines:
        engine.set_parameters(parameters)
        found.append(engine.input_gradient(inputs, loss).copy())
    assert found[0].shape == (count, 3 if spec.image else spec.inputs[0])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-5)
    assert np.abs(found[1]).max() > 0.01


def test_results_kept_for_a_gradient_are_not_lost() -> None:
    """A derivative by inputs between `act` and the gradient does not change the gradient."""
    spec, rng = SPECS["separate"], np.random.default_rng(1)
    engine = HostEngine(spec, np.float32, (1, 3))
    engine.set_parameters((0.3 * rng.normal(size=spec.layout().size)).astype(np.float32))
    inputs = rng.normal(size=(3, 17)).astype(np.float32)
    no_state, no_restart = np.zeros((3, 0), np.float32), np.zeros((1, 3), np.bool_)
    expected = engine.gradient(inputs[None], no_state, no_restart, loss).copy()
    engine.act(inputs, no_state, keep=0)
    engine.input_gradient(rng.normal(size=(3, 17)).astype(np.float32), loss)
    np.testing.assert_array_equal(engine.gradient(inputs[None], no_state, no_restart, loss), expected)


def test_recurrent_networks_are_refused() -> None:
    spec = NetworkSpec((5,), HEADS, (8,), lstm=4)
    with pytest.raises(AssertionError, match="LSTM"):
        HostEngine(spec, np.float32, (1, None)).input_gradient(np.zeros((1, 5), np.float32), loss)
