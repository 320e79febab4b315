from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from relaax.algorithm_base.feed_forward import FeedForward
from relaax.nn.networks import Convolution, NetworkSpec, orthogonal_parameters


def test_numbers_worked_out_by_hand() -> None:
    """One hidden unit: relu(1 x 2 + 3 x (-1) + 2) = 1, doubled and less 4: -2; thrice and plus 1: 4."""
    network = FeedForward(NetworkSpec((2,), {"a": 1, "b": 1}, dense=(1,)))
    assert network.size == 3 + 2 + 2
    parameters = np.array([2, -1, 2, 2, -4, 3, 1], np.float32)
    inputs = np.array([[1, 3]], np.float32)
    assert network.act(parameters, inputs) == {"a": [[-2]], "b": [[4]]}
    outputs = network.outputs(tf.constant(parameters), tf.constant(inputs))
    assert {head: output.numpy() for head, output in outputs.items()} == {"a": [[-2]], "b": [[4]]}


def test_numpy_and_tensorflow_give_the_same() -> None:
    spec = NetworkSpec(
        (5,), {"policy": 3, "value": 1}, dense=(8, 4), activation="tanh", groups=(("policy",), ("value",))
    )
    network = FeedForward(spec)
    parameters = orthogonal_parameters(spec, 1, {})
    inputs = np.random.default_rng(2).normal(size=(7, 5)).astype(np.float32)
    acted = network.act(parameters, inputs)
    learned = network.outputs(tf.constant(parameters), tf.constant(inputs))
    assert acted.keys() == learned.keys() == {"policy", "value"}
    for head, output in learned.items():
        np.testing.assert_allclose(acted[head], output.numpy(), rtol=1e-5, atol=1e-6)


def test_the_gradient_is_that_of_the_whole_vector() -> None:
    spec = NetworkSpec((3,), {"y": 2}, dense=(4,), activation="tanh")
    network = FeedForward(spec)
    parameters = orthogonal_parameters(spec, 1, {})
    inputs = np.random.default_rng(2).normal(size=(6, 3)).astype(np.float32)

    @tf.function(input_signature=[tf.TensorSpec([network.size]), tf.TensorSpec([None, 3])])
    def gradient(vector: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(vector)
            loss = tf.reduce_sum(tf.square(network.outputs(vector, batch)["y"]))
        return tape.gradient(loss, vector)

    def loss(vector: np.ndarray) -> float:
        return float(np.square(network.act(vector, inputs)["y"].astype(np.float64)).sum())

    step = np.float32(1e-2)
    nudges = step * np.eye(network.size, dtype=np.float32)
    differences = [(loss(parameters + nudge) - loss(parameters - nudge)) / (2 * step) for nudge in nudges]
    np.testing.assert_allclose(gradient(parameters, inputs).numpy(), differences, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("more", [{"lstm": 4}, {"convolutions": (Convolution(2, 2, 1),), "inputs": (4, 4, 1)}])
def test_what_needs_more_than_this_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="a network of dense layers alone is needed, not NetworkSpec"):
        FeedForward(NetworkSpec(**{"inputs": (3,), "heads": {"y": 1}, "dense": (4,), **more}))
