"""Networks of the host compared with TensorFlow: outputs, and gradients by every parameter."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from relaax.nn.host import convolution, kernels
from relaax.nn.host import network as module
from relaax.nn.host.network import Activations, HostNetwork
from relaax.nn.initialization import orthogonal_parameters
from relaax.nn.specification import Convolution, NetworkSpec
from relaax.nn.tensorflow_engine import forward
from relaax.nn.tensorflow_loading import tf

HEADS = {"policy": 5, "value": 1}
SEPARATE = (("policy",), ("value",))
TWO = (Convolution(16, 4, 2), Convolution(5, 3, 2))
SPECS = {
    "dense": NetworkSpec((4,), HEADS, (6, 7)),
    "heads alone": NetworkSpec((4,), HEADS, ()),
    "tanh": NetworkSpec((4,), HEADS, (6,), activation="tanh"),
    "separate": NetworkSpec((4,), HEADS, (6, 3), groups=SEPARATE),
    "image": NetworkSpec((14, 17, 4), HEADS, (20,), TWO),
    "image tanh separate": NetworkSpec((14, 17, 3), HEADS, (9,), TWO, activation="tanh", groups=SEPARATE),
    "image without dense": NetworkSpec((9, 9, 1), HEADS, (), (Convolution(3, 2, 3),)),
    "image without convolutions": NetworkSpec((5, 6, 2), HEADS, (8,)),
    "side": NetworkSpec((14 * 17 * 4 + 3,), HEADS, (20,), TWO, image=(14, 17, 4), side_width=6),
    "side, tanh, separate": NetworkSpec(
        (14 * 17 + 1,), HEADS, (9, 4), TWO, "tanh", groups=SEPARATE, image=(14, 17, 1), side_width=5
    ),
    "side without dense": NetworkSpec((9 * 9 + 4,), HEADS, (), (Convolution(3, 2, 3),), image=(9, 9, 1), side_width=2),
    "image without side": NetworkSpec((14 * 17,), HEADS, (9,), TWO, image=(14, 17, 1)),
    "streams, side": NetworkSpec((14 * 17 + 2,), HEADS, (7,), TWO, streams=True, image=(14, 17, 1), side_width=6),
    "streams": NetworkSpec((4,), HEADS, (6, 7), streams=True),
    "streams, separate": NetworkSpec((4,), HEADS, (6, 3), groups=SEPARATE, streams=True),
    "streams, image": NetworkSpec((14, 17, 4), HEADS, (20,), TWO, streams=True),
    "streams, image, tanh": NetworkSpec((14, 17, 4), HEADS, (9, 20), TWO, activation="tanh", streams=True),
}


BY_BLAS = ("dense", "tanh", "separate", "streams, separate")


@pytest.fixture(params=[*SPECS, *(f"{name} by BLAS" for name in BY_BLAS)])
def spec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> NetworkSpec:
    """A network specification. For a name with " by BLAS", small dense networks are not computed in one call."""
    name = request.param.removesuffix(" by BLAS")
    if name != request.param:
        monkeypatch.setattr(module, "FEW_MULTIPLICATIONS", 0)
    return SPECS[name]


def inputs_of(spec: NetworkSpec, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if len(spec.inputs) == 3:
        return rng.integers(0, 256, (count, *spec.inputs), dtype=np.uint8)
    return rng.standard_normal((count, *spec.inputs)).astype(np.float32)


def parameters_of(spec: NetworkSpec) -> np.ndarray:
    vector = orthogonal_parameters(spec, 3, {})
    return vector + 0.1 * np.random.default_rng(4).standard_normal(vector.shape).astype(np.float32)  # biases too


def network_of(spec: NetworkSpec) -> HostNetwork:
    network = HostNetwork(spec)
    network.set_parameters(parameters_of(spec), pixels=len(spec.inputs) == 3)
    return network


def tensorflow(spec: NetworkSpec, inputs: np.ndarray, factors: dict[str, np.ndarray]) -> tuple[Any, np.ndarray]:
    """Outputs, and the gradient of the sum of outputs times factors."""
    layout, scale = spec.layout(), 255 if inputs.dtype == np.uint8 else 1
    flat = tf.constant(parameters_of(spec))
    count = len(inputs)
    with tf.GradientTape() as tape:
        tape.watch(flat)
        parts = zip(tf.split(flat, layout.sizes), layout.shapes.items(), strict=True)
        named = {name: tf.reshape(part, shape) for part, (name, shape) in parts}
        examples = tf.constant((inputs.astype(np.float32) / scale)[None])
        outputs, _ = forward(spec, named, examples, tf.zeros([count, 0]), tf.zeros([1, count], tf.bool))
        loss = tf.add_n([tf.reduce_sum(outputs[head][0] * factor) for head, factor in factors.items()])
    return {head: output[0].numpy() for head, output in outputs.items()}, tape.gradient(loss, flat).numpy()


def factors_of(spec: NetworkSpec, count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {head: rng.standard_normal((count, width)).astype(np.float32) for head, width in spec.heads.items()}


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("count", [1, 3, 40])
def test_host_outputs_and_gradients_equal_tensorflow(spec: NetworkSpec, count: int) -> None:
    inputs, factors = inputs_of(spec, count), factors_of(spec, count)
    network, activations = network_of(spec), Activations(count + 2, HostNetwork(spec).sizes)
    network.forward(inputs, activations, 2)
    outputs = network.outputs(activations, 2, count + 2)
    expected, expected_gradient = tensorflow(spec, inputs, factors)
    for head in spec.heads:
        np.testing.assert_allclose(outputs[head], expected[head], rtol=1e-4, atol=1e-5)
    gradient = np.full(spec.layout().size, np.nan, np.float32)
    network.backward(inputs, activations, 2, factors, gradient, accumulate=False)
    close(gradient, expected_gradient)
    network.backward(inputs, activations, 2, factors, gradient, accumulate=True)
    close(gradient, 2 * expected_gradient)


def test_chunks_and_small_products_give_equal_results(spec: NetworkSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, factors = inputs_of(spec, 7), factors_of(spec, 7)

    def both() -> tuple[dict[str, np.ndarray], np.ndarray]:
        network = network_of(spec)
        activations, gradient = Activations(7, network.sizes), np.zeros(spec.layout().size, np.float32)
        network.forward(inputs, activations, 0)
        network.backward(inputs, activations, 0, factors, gradient, accumulate=False)
        return network.outputs(activations, 0, 7), gradient

    whole, whole_gradient = both()
    monkeypatch.setattr(convolution, "CHUNK_BYTES", 1)
    monkeypatch.setattr(kernels, "SMALL_PRODUCT", 100)
    parts, parts_gradient = both()
    for head in whole:
        np.testing.assert_allclose(parts[head], whole[head], rtol=1e-4, atol=1e-5)
    close(parts_gradient, whole_gradient)


def test_reused_memory_does_not_change_gradients(spec: NetworkSpec) -> None:
    """The same memory is used for batches of different sizes."""
    network = network_of(spec)
    activations = Activations(9, network.sizes)
    gradient = np.zeros(spec.layout().size, np.float32)
    for count in (5, 9, 2):
        inputs, factors = inputs_of(spec, count, seed=count), factors_of(spec, count)
        network.forward(inputs, activations, 0)
        network.backward(inputs, activations, 0, factors, gradient, accumulate=False)
        close(gradient, tensorflow(spec, inputs, factors)[1])


def test_new_parameters_are_used() -> None:
    spec = SPECS["image"]
    network, inputs = network_of(spec), inputs_of(spec, 2)
    activations = Activations(2, network.sizes)
    network.set_parameters(np.zeros(spec.layout().size, np.float32), pixels=True)
    network.forward(inputs, activations, 0)
    assert not network.outputs(activations, 0, 2)["policy"].any()


def test_read_only_inputs_are_accepted(spec: NetworkSpec) -> None:
    inputs = inputs_of(spec, 3)
    inputs.flags.writeable = False
    network = network_of(spec)
    activations = Activations(3, network.sizes)
    network.forward(inputs, activations, 0)
    gradient = np.zeros(spec.layout().size, np.float32)
    network.backward(inputs, activations, 0, factors_of(spec, 3), gradient, accumulate=False)


def test_non_contiguous_inputs_are_accepted() -> None:
    spec = SPECS["image"]
    network, inputs = network_of(spec), inputs_of(spec, 6)[::2]
    activations = Activations(3, network.sizes)
    network.forward(inputs, activations, 0)
    expected, _ = tensorflow(spec, inputs, factors_of(spec, 3))
    np.testing.assert_allclose(network.outputs(activations, 0, 3)["value"], expected["value"], atol=1e-5)


def test_single_call_and_blas_use_each_others_activations() -> None:
    """Small batches compute all layers in a single call, larger ones each layer by BLAS."""
    spec = SPECS["separate"]
    network = network_of(spec)
    few = network._few
    assert 1 < few < 10**5
    count = few + 1
    inputs, factors = inputs_of(spec, count), factors_of(spec, count)
    activations, gradient = Activations(count, network.sizes), np.zeros(spec.layout().size, np.float32)
    expected, expected_gradient = tensorflow(spec, inputs, factors)
    network.forward(inputs, activations, 0)
    for start, stop in ((0, few), (few, count)):  # with activations computed by BLAS
        parts = {head: factor[start:stop] for head, factor in factors.items()}
        network.backward(inputs[start:stop], activations, start, parts, gradient, accumulate=start > 0)
    close(gradient, expected_gradient)
    network.forward(inputs[:few], activations, 0)
    network.forward(inputs[few:], activations, few)
    network.backward(inputs, activations, 0, factors, gradient, accumulate=False)
    close(gradient, expected_gradient)
    np.testing.assert_allclose(network.outputs(activations, 0, count)["value"], expected["value"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_nan_inputs_give_nan_outputs_and_gradients(activation: Literal["relu", "tanh"]) -> None:
    """The parameter server then finds it in the push."""
    spec = NetworkSpec((2,), HEADS, (20,), activation=activation)
    network, inputs = network_of(spec), np.array([[1, 2], [np.nan, 0], [3, 4]], np.float32)
    activations, gradient = Activations(3, network.sizes), np.zeros(spec.layout().size, np.float32)
    network.forward(inputs, activations, 0)
    outputs = network.outputs(activations, 0, 3)["policy"]
    assert np.isnan(outputs).all(axis=1).tolist() == [False, True, False]
    assert np.isfinite(outputs[[0, 2]]).all()
    network.backward(inputs, activations, 0, factors_of(spec, 3), gradient, accumulate=False)
    assert np.isnan(gradient).any()


def test_tanh_equals_numpy() -> None:
    """The results agree to a few units in the last place, for inputs near zero up to those whose result is 1."""
    spec = NetworkSpec((1,), {"policy": 1}, (1,), activation="tanh")
    network = HostNetwork(spec)
    network.set_parameters(np.array([1, 0, 1, 0], np.float32), pixels=False)
    inputs = np.concatenate([np.linspace(-12, 12, 999), np.geomspace(1e-20, 1, 99), [np.inf]])[:, None]
    inputs = inputs.astype(np.float32)
    activations = Activations(len(inputs), network.sizes)
    network.forward(inputs, activations, 0)
    found = network.outputs(activations, 0, len(inputs))["policy"]
    np.testing.assert_allclose(found, np.tanh(inputs.astype(np.float64)), rtol=5e-7)


def test_parameters_of_wrong_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a vector of shape \(30,\) is needed, not \(3,\)"):
        HostNetwork(SPECS["heads alone"]).set_parameters(np.zeros(3, np.float32), pixels=False)


@pytest.mark.parametrize("zeros", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("inputs", [1, 3, 4, 70])
def test_kernel_rows_for_zero_inputs_are_not_read(inputs: int, zeros: float) -> None:
    rng = np.random.default_rng(5)
    x = np.where(rng.random(inputs) < zeros, 0, rng.random(inputs) + 0.1).astype(np.float32)
    kernel = rng.standard_normal((inputs, 6)).astype(np.float32)
    out = np.full(6, 9, np.float32)
    kernel[x == 0] = np.nan
    kernels.product_of_relu(x, kernel, out)
    np.testing.assert_allclose(out, x[x != 0] @ kernel[x != 0], rtol=1e-5, atol=1e-6)
