"""Networks with streams: shapes, equal results of all engines, gradients and initial parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from relaax.nn.action_values import ActionValues
from relaax.nn.host.engine import HostEngine
from relaax.nn.initialization import orthogonal_parameters
from relaax.nn.numpy_actor import NumpyActor, forward_numpy
from relaax.nn.specification import Convolution, NetworkSpec
from relaax.nn.tensorflow_engine import TensorFlowEngine, forward
from relaax.nn.tensorflow_loading import tf
from support.slow_parameters import fast_and_slow

DUELING = ActionValues(5, dueling=True)
HEADS = DUELING.heads
SEPARATE = (("value",), ("advantage",))
TWO = (Convolution(8, 4, 2), Convolution(5, 3, 2))
SPECS = {
    "image": NetworkSpec((14, 17, 4), HEADS, (12,), TWO, streams=True),
    "tanh": NetworkSpec((14, 17, 4), HEADS, (9, 6), TWO, activation="tanh", streams=True),
    "three heads": NetworkSpec((9, 9, 1), {"a": 2, "b": 1, "c": 3}, (7,), TWO[:1], streams=True),
    "two trunks": NetworkSpec(
        (9, 9, 1), {"a": 2, "b": 1, "c": 3}, (7,), TWO[:1], groups=(("c", "a"), ("b",)), streams=True
    ),
    "vector": NetworkSpec((4,), HEADS, (6, 5), streams=True),
}


def parameters_of(spec: NetworkSpec, seed: int = 3) -> np.ndarray:
    vector = orthogonal_parameters(spec, seed, {})
    return vector + np.random.default_rng(seed).normal(0, 0.1, vector.shape).astype(np.float32)  # biases too


def inputs_of(spec: NetworkSpec, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(4)
    if len(spec.inputs) == 3:
        return rng.integers(0, 256, (*shape, *spec.inputs), dtype=np.uint8)
    return rng.standard_normal((*shape, *spec.inputs), np.float32)


def no_state(count: int) -> np.ndarray:
    return np.zeros((count, 0), np.float32)


def engines_of(spec: NetworkSpec) -> tuple[HostEngine, TensorFlowEngine]:
    dtype = np.uint8 if len(spec.inputs) == 3 else np.float32
    made = HostEngine(spec, dtype, (5, None)), TensorFlowEngine(spec, dtype)
    for engine in made:
        engine.set_parameters(parameters_of(spec))
    return made


def close(found: np.ndarray, expected: np.ndarray) -> None:
    largest = np.abs(expected).max()
    assert largest > 1e-2
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * largest)


def test_dueling_network_has_the_shapes_of_the_paper() -> None:
    convolutions = (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1))
    spec = NetworkSpec((84, 84, 4), {"value": 1, "advantage": 18}, (512,), convolutions, streams=True)
    # 84 -> 20 -> 9 -> 7, and 7 * 7 * 64 = 3136; a layer of 512 for each of the two.
    shapes = dict(list(spec.layout().shapes.items())[6:])
    assert shapes == {
        "dense0/kernel": (3136, 1024),
        "dense0/bias": (1024,),
        "value/kernel": (512, 1),
        "value/bias": (1,),
        "advantage/kernel": (512, 18),
        "advantage/bias": (18,),
    }
    # 8192 + 32 + 32768 + 64 + 36864 + 64 + 3211264 + 1024 + 512 + 1 + 9216 + 18
    assert spec.layout().size == 3_300_019


def test_only_last_dense_layer_has_streams() -> None:
    shapes = NetworkSpec((5,), {"a": 2, "b": 1, "c": 3}, (4, 6), streams=True).layout().shapes
    assert (shapes["dense0/kernel"], shapes["dense1/kernel"], shapes["dense1/bias"]) == ((5, 4), (4, 18), (18,))
    assert [shapes[f"{head}/kernel"] for head in "abc"] == [(6, 2), (6, 1), (6, 3)]


def test_streams_do_not_change_heads_with_separate_trunks() -> None:
    plain, streams = (NetworkSpec((5,), HEADS, (4, 3), groups=SEPARATE, streams=streams) for streams in (False, True))
    assert plain.layout().shapes == streams.layout().shapes
    vector = parameters_of(plain)
    np.testing.assert_array_equal(vector, parameters_of(streams))
    inputs = inputs_of(plain, 3)
    for kind in (NumpyActor, lambda spec: HostEngine(spec, np.float32, (1, 3))):
        found = []
        for spec in (plain, streams):
            actor = kind(spec)
            actor.set_parameters(vector)
            found.append(actor.act(inputs, no_state(3))[0])
        for head in HEADS:
            np.testing.assert_array_equal(*(outputs[head] for outputs in found))


@pytest.mark.parametrize(
    ("dense", "lstm", "sentence"),
    [
        ((), 0, "streams need a dense layer: give `dense` at least one width"),
        ((), 3, "streams cannot be combined with an LSTM: use only one of them"),
        ((4,), 3, "streams cannot be combined with an LSTM: use only one of them"),
    ],
)
@pytest.mark.parametrize("groups", [(), SEPARATE])
def test_streams_without_dense_layer_or_with_lstm_are_refused(
    dense: tuple[int, ...], lstm: int, sentence: str, groups: tuple[tuple[str, ...], ...]
) -> None:
    spec = NetworkSpec((5,), HEADS, dense, groups=groups, lstm=lstm, streams=True)
    for make in (NetworkSpec.layout, NumpyActor, lambda spec: HostEngine(spec, np.float32, (1, 1))):
        with pytest.raises(ValueError, match=sentence):
            make(spec)


def test_streams_match_hand_calculation() -> None:
    spec = NetworkSpec((1,), {"a": 1, "b": 2}, (2,), streams=True)
    # x = 1: [1, 2, -1, 3] + [0, 0, 0, 1] -> relu [1, 2 | 0, 4]. a: 10 + 2 + 0.5; b: 4 * [1, -1] + [0, 100].
    vector = np.array([1, 2, -1, 3, 0, 0, 0, 1, 10, 1, 0.5, 7, 8, 1, -1, 0, 100], np.float32)
    inputs = np.ones((1, 1), np.float32)
    for actor in (NumpyActor(spec), HostEngine(spec, np.float32, (1, 1)), TensorFlowEngine(spec, np.float32)):
        actor.set_parameters(vector)
        outputs, _ = actor.act(inputs, no_state(1))
        assert {head: output.tolist() for head, output in outputs.items()} == {"a": [[12.5]], "b": [[4, 96]]}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("count", [1, 7, 50])
def test_host_and_numpy_outputs_equal_tensorflow(name: str, count: int) -> None:
    spec = SPECS[name]
    host, tensorflow = engines_of(spec)
    actor = NumpyActor(spec)
    actor.set_parameters(parameters_of(spec))
    inputs = inputs_of(spec, count)
    expected, _ = tensorflow.act(inputs, no_state(count))
    for act in (host.act, actor.act):
        found, _ = act(inputs, no_state(count))
        assert found.keys() == spec.heads.keys()
        for head, width in spec.heads.items():
            assert (found[head].shape, found[head].dtype) == ((count, width), np.float32)
            np.testing.assert_allclose(found[head], expected[head], rtol=1e-4, atol=1e-5)


def test_each_head_equals_network_with_only_its_stream() -> None:
    spec = SPECS["three heads"]
    views = spec.layout().views(parameters_of(spec))
    inputs = inputs_of(spec, 4).astype(np.float32)
    together, _ = forward_numpy(spec, views, inputs, no_state(4))
    for start, head in zip((0, 7, 14), "abc", strict=True):
        alone = NetworkSpec(spec.inputs, {head: spec.heads[head]}, spec.dense, spec.convolutions)
        own = {name: views[name] for name in alone.layout().shapes}
        own |= {name: own[name][..., start : start + 7] for name in ("dense0/kernel", "dense0/bias")}
        found, _ = forward_numpy(alone, own, inputs, no_state(4))
        np.testing.assert_allclose(together[head], found[head], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("environments", fast_and_slow([1, 3], [3], "relaax/nn"))
@pytest.mark.parametrize("rows", [(), (0, 3), (0, 1, 2, 3, 4)])
def test_host_gradient_equals_tensorflow(name: str, environments: int, rows: tuple[int, ...]) -> None:
    """Activations are kept of no, some or all rows, and the loss depends on the outputs."""
    spec, count = SPECS[name], 5 * environments
    rng = np.random.default_rng(6)
    weights = {head: rng.standard_normal((count, width), np.float32) for head, width in spec.heads.items()}

    def loss(outputs: Any, part: slice) -> dict[str, np.ndarray]:
        return {head: weights[head][part] * np.tanh(output) for head, output in outputs.items()}

    inputs, restart = inputs_of(spec, 5, environments), np.zeros((5, environments), np.bool_)
    host, tensorflow = engines_of(spec)
    for row in rows:
        host.act(inputs[row], no_state(environments), keep=row)
    found, expected = (engine.gradient(inputs, no_state(environments), restart, loss) for engine in (host, tensorflow))
    views, expected_views = spec.layout().views(found), spec.layout().views(expected)
    for name in views:  # each layer by itself, so that large gradients do not hide errors in small ones
        close(views[name], expected_views[name])


def test_stream_gradients_equal_finite_differences() -> None:
    spec = NetworkSpec((5, 5, 2), HEADS, (4,), TWO[:1], activation="tanh", streams=True)
    inputs = np.random.default_rng(7).standard_normal((3, *spec.inputs), np.float32)
    weights = np.random.default_rng(8).standard_normal((3, 5), np.float32)
    engine, vector = HostEngine(spec, np.float32, (3, 1)), parameters_of(spec)

    def loss(outputs: Any, part: slice) -> dict[str, np.ndarray]:
        return DUELING.gradient(2 * weights[part] * DUELING.values(outputs))

    def total(vector: np.ndarray) -> float:
        engine.set_parameters(vector)
        outputs, _ = engine.act(inputs, no_state(3))
        return float((weights * DUELING.values(outputs) ** 2).sum())

    engine.set_parameters(vector)
    found = engine.gradient(inputs[:, None], no_state(1), np.zeros((3, 1), np.bool_), loss).copy()
    # All parameters after the convolution.
    for index in range(spec.layout().sizes[0], len(vector)):
        ends = []
        for move in (1e-2, -1e-2):
            moved = vector.copy()
            moved[index] += move
            ends.append(total(moved))
        assert found[index] == pytest.approx((ends[0] - ends[1]) / 2e-2, abs=1e-2)


def test_gradient_of_dueling_values_equals_tensorflow() -> None:
    """The comparison includes the aggregation, which TensorFlow differentiates automatically."""
    spec, inputs = SPECS["image"], inputs_of(SPECS["image"], 6)
    weights = np.random.default_rng(8).standard_normal((6, 5), np.float32)

    def loss(outputs: Any, part: slice) -> dict[str, np.ndarray]:
        return DUELING.gradient(2 * weights[part] * DUELING.values(outputs))

    host, _ = engines_of(spec)
    found = host.gradient(inputs[:, None], no_state(1), np.zeros((6, 1), np.bool_), loss)
    variables = {name: tf.Variable(view) for name, view in spec.layout().views(parameters_of(spec)).items()}
    with tf.GradientTape() as tape:
        examples = tf.constant((inputs / np.float32(255))[None])
        outputs, _ = forward(spec, variables, examples, tf.zeros([6, 0]), tf.zeros([1, 6], tf.bool))
        advantage = outputs["advantage"][0]
        values = outputs["value"][0] + advantage - tf.reduce_mean(advantage, axis=1, keepdims=True)
        total = tf.reduce_sum(weights * values**2)
    expected = {name: part.numpy() for name, part in tape.gradient(total, variables).items()}
    close(found, spec.layout().join(expected))


def test_each_stream_is_initially_orthogonal() -> None:
    spec = NetworkSpec((6,), {"a": 2, "b": 1, "c": 3}, (12, 5), streams=True)
    views = spec.layout().views(orthogonal_parameters(spec, 3, {"a": 0.01}))
    parts = np.split(views["dense1/kernel"], 3, axis=1)
    for part in parts:
        np.testing.assert_allclose(part.T @ part, 2 * np.eye(5), atol=1e-5)
    assert not np.allclose(parts[0], parts[1])
    whole = views["dense0/kernel"]
    np.testing.assert_allclose(whole @ whole.T, 2 * np.eye(6), atol=1e-5)
    np.testing.assert_allclose(views["a/kernel"].T @ views["a/kernel"], 1e-4 * np.eye(2), atol=1e-8)
    assert views["b/kernel"].T @ views["b/kernel"] == pytest.approx(math.sqrt(2) ** 2, rel=1e-5)
