from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from relaax.tf.networks import Convolution, NetworkSpec, forward, forward_numpy, orthogonal_parameters

HEADS = {"policy": 3, "value": 1}
ATARI = NetworkSpec((84, 84, 4), {"policy": 18, "value": 1}, (256,), (Convolution(16, 8, 4), Convolution(32, 4, 2)))


def random_vector(spec: NetworkSpec, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=spec.layout().size).astype(np.float32)


def evaluate(spec: NetworkSpec, vector: np.ndarray, inputs: np.ndarray) -> dict[str, np.ndarray]:
    parameters = {name: tf.constant(view) for name, view in spec.layout().views(vector).items()}
    return {name: output.numpy() for name, output in forward(spec, parameters, tf.constant(inputs)).items()}


def test_the_atari_network_is_that_of_the_paper() -> None:
    # (84 - 8) / 4 + 1 = 20;  (20 - 4) / 2 + 1 = 9;  9 * 9 * 32 = 2592.
    assert ATARI.layout().shapes == {
        "conv0/kernel": (8, 8, 4, 16),
        "conv0/bias": (16,),
        "conv1/kernel": (4, 4, 16, 32),
        "conv1/bias": (32,),
        "dense0/kernel": (2592, 256),
        "dense0/bias": (256,),
        "policy/kernel": (256, 18),
        "policy/bias": (18,),
        "value/kernel": (256, 1),
        "value/bias": (1,),
    }
    # 4096 + 16 + 8192 + 32 + 663552 + 256 + 4608 + 18 + 256 + 1
    assert ATARI.layout().size == 681_027


def test_separate_heads_share_nothing() -> None:
    shapes = NetworkSpec((5,), HEADS, (4,), separate=True).layout().shapes
    assert shapes == {
        "policy/dense0/kernel": (5, 4),
        "policy/dense0/bias": (4,),
        "policy/kernel": (4, 3),
        "policy/bias": (3,),
        "value/dense0/kernel": (5, 4),
        "value/dense0/bias": (4,),
        "value/kernel": (4, 1),
        "value/bias": (1,),
    }


def test_a_head_may_stand_on_the_input() -> None:
    assert NetworkSpec((5,), {"value": 1}, ()).layout().shapes == {"value/kernel": (5, 1), "value/bias": (1,)}


@pytest.mark.parametrize(("height", "fits"), [(36, True), (12, False), (7, False)])
def test_an_image_too_small_is_refused(height: int, fits: bool) -> None:
    spec = NetworkSpec((height, 84, 1), HEADS, (8,), ATARI.convolutions)
    if fits:
        spec.layout()
        return
    with pytest.raises(ValueError, match=rf"an image of \[{height}, 84, 1\] is too small for convolution \d"):
        spec.layout()


def test_dense_layers_by_hand() -> None:
    spec = NetworkSpec((2,), {"value": 1}, (2,))
    # x = [1, 2]; kernel [[1, -1], [2, 1]], bias [0.5, -3]: [1 + 4 + 0.5, -1 + 2 - 3] = [5.5, -2] -> relu [5.5, 0];
    # head [10, 100] + 7 = 62.
    vector = np.array([1, -1, 2, 1, 0.5, -3, 10, 100, 7], np.float32)
    inputs = np.array([[1, 2]], np.float32)
    assert evaluate(spec, vector, inputs)["value"].tolist() == [[62.0]]
    assert forward_numpy(spec, spec.layout().views(vector), inputs)["value"].tolist() == [[62.0]]


def test_tanh_by_hand() -> None:
    spec = NetworkSpec((1,), {"value": 1}, (1,), activation="tanh")
    vector = np.array([2, 1, 3, 0.25], np.float32)  # 3 tanh(2x + 1) + 1/4
    found = evaluate(spec, vector, np.array([[0.5]], np.float32))["value"]
    np.testing.assert_allclose(found, [[3 * math.tanh(2.0) + 0.25]], rtol=1e-6)


def test_a_convolution_by_hand() -> None:
    # One 2x2 filter, stride 2, over a 2x5 image: two places, and the last column is left out (no padding).
    spec = NetworkSpec((2, 5, 1), {"value": 1}, (), (Convolution(1, 2, 2),))
    assert spec.layout().shapes["conv0/kernel"] == (2, 2, 1, 1)
    kernel, bias, head, head_bias = [1, 2, 3, 4], [-20], [1, 10], [0.5]
    image = np.array([[1, 2, 3, 4, 99], [5, 6, 7, 8, 99]], np.float32).reshape(1, 2, 5, 1)
    # left: 1*1 + 2*2 + 3*5 + 4*6 = 44 - 20 = 24;  right: 3 + 8 + 21 + 32 = 64 - 20 = 44;  24 + 440 + 0.5.
    vector = np.array([*kernel, *bias, *head, *head_bias], np.float32)
    assert evaluate(spec, vector, image)["value"].tolist() == [[464.5]]


def test_each_separate_trunk_feeds_its_own_head() -> None:
    spec = NetworkSpec((1,), {"policy": 1, "value": 1}, (1,), separate=True)
    # policy: relu(2x) * 3;  value: relu(5x) * 7, for x = 1.
    vector = np.array([2, 0, 3, 0, 5, 0, 7, 0], np.float32)
    found = evaluate(spec, vector, np.ones((1, 1), np.float32))
    assert (found["policy"].item(), found["value"].item()) == (6.0, 35.0)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("dense", [(), (7,), (64, 64)])
@pytest.mark.parametrize("batch", [1, 9])
def test_numpy_equals_tensorflow(activation: str, separate: bool, dense: tuple[int, ...], batch: int) -> None:
    spec = NetworkSpec((6,), HEADS, dense, activation=activation, separate=separate)
    vector = orthogonal_parameters(spec, 1, {}) + 0.1 * random_vector(spec)
    inputs = np.random.default_rng(5).normal(size=(batch, 6)).astype(np.float32)
    kept = inputs.copy()
    ours, theirs = forward_numpy(spec, spec.layout().views(vector), inputs), evaluate(spec, vector, inputs)
    assert ours.keys() == theirs.keys() == HEADS.keys()
    for head, width in HEADS.items():
        assert ours[head].shape == (batch, width)
        assert ours[head].dtype == np.float32
        np.testing.assert_allclose(ours[head], theirs[head], atol=1e-5)
    np.testing.assert_array_equal(inputs, kept)


def test_numpy_leaves_convolutions_to_tensorflow() -> None:
    with pytest.raises(ValueError, match="left to TensorFlow"):
        forward_numpy(ATARI, {}, np.zeros((1, 84, 84, 4), np.float32))


def test_gradients_of_the_whole_network_equal_finite_differences() -> None:
    spec = NetworkSpec((5, 5, 2), HEADS, (4,), (Convolution(2, 3, 2),), activation="tanh")
    layout, rng = spec.layout(), np.random.default_rng(2)
    vector = 0.3 * random_vector(spec)
    inputs = rng.normal(size=(3, 5, 5, 2)).astype(np.float32)
    weights = {head: rng.normal(size=(3, width)).astype(np.float32) for head, width in HEADS.items()}

    def total(outputs: dict[str, tf.Tensor]) -> tf.Tensor:
        return sum(tf.reduce_sum(weights[head] * outputs[head]) for head in HEADS)

    variables = {name: tf.Variable(view) for name, view in layout.views(vector).items()}
    with tf.GradientTape() as tape:
        loss = total(forward(spec, variables, tf.constant(inputs)))
    found = layout.join({name: part.numpy() for name, part in tape.gradient(loss, variables).items()})
    for index in rng.choice(layout.size, 25, replace=False):
        ends = []
        for move in (1e-2, -1e-2):
            moved = vector.copy()
            moved[index] += move
            ends.append(float(total(evaluate(spec, moved, inputs))))
        assert found[index] == pytest.approx((ends[0] - ends[1]) / 2e-2, abs=5e-3)


def test_initial_kernels_are_orthogonal_with_their_gain() -> None:
    spec = NetworkSpec((6,), HEADS, (8, 5))
    views = spec.layout().views(orthogonal_parameters(spec, 3, {"policy": 0.01, "value": 1.0}))
    for name, gain in {"dense0": math.sqrt(2), "dense1": math.sqrt(2), "policy": 0.01, "value": 1.0}.items():
        kernel = views[f"{name}/kernel"]
        small = kernel.T @ kernel if kernel.shape[0] >= kernel.shape[1] else kernel @ kernel.T
        np.testing.assert_allclose(small, gain**2 * np.eye(len(small)), atol=1e-6)
        assert not views[f"{name}/bias"].any()


def test_initial_filters_are_orthogonal() -> None:
    views = ATARI.layout().views(orthogonal_parameters(ATARI, 0, {}))
    filters = views["conv0/kernel"].reshape(-1, 16)
    np.testing.assert_allclose(filters.T @ filters, 2 * np.eye(16), atol=1e-5)


def test_initial_parameters_are_fixed_by_the_seed() -> None:
    spec = NetworkSpec((6,), HEADS, (8,))
    first, again, other = (orthogonal_parameters(spec, seed, {}) for seed in (1, 1, 2))
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
