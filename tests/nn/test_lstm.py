from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from relaax.nn.numpy_actor import lstm_numpy
from relaax.nn.tensorflow_engine import lstm
from relaax.nn.tensorflow_loading import tf
from support.gradients import finite_differences
from support.slow_parameters import fast_and_slow

Arrays = dict[str, np.ndarray]
FEATURES, CELLS, N = 3, 4, 2
# `restart` is not listed: it has no gradient.
VARIED = ("x", "h", "c", "kernel", "bias")


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def unrolled(arguments: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The layer in float64, for single environments and single steps."""
    x, h, c, restart, kernel, bias = (arguments[name] for name in ("x", "h", "c", "restart", "kernel", "bias"))
    outputs, last_h, last_c = np.zeros((*x.shape[:2], h.shape[1])), np.zeros(h.shape), np.zeros(c.shape)
    for n in range(x.shape[1]):
        h_n, c_n = h[n], c[n]
        for t in range(len(x)):
            if restart[t, n]:
                h_n, c_n = np.zeros(len(h_n)), np.zeros(len(c_n))
            i, f, g, o = np.split(np.concatenate([x[t, n], h_n]) @ kernel + bias, 4)
            c_n = sigmoid(f) * c_n + sigmoid(i) * np.tanh(g)
            h_n = sigmoid(o) * np.tanh(c_n)
            outputs[t, n] = h_n
        last_h[n], last_c[n] = h_n, c_n
    return outputs, last_h, last_c


def some_arguments(steps: int, seed: int = 0) -> Arrays:
    """A rollout. The first environment restarts at up to three steps, one of them step 0, the second at most once."""
    rng = np.random.default_rng(seed)
    shapes = {
        "x": (steps, N, FEATURES),
        "h": (N, CELLS),
        "c": (N, CELLS),
        "kernel": (FEATURES + CELLS, 4 * CELLS),
        "bias": (4 * CELLS,),
    }
    arguments = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    restart = np.zeros((steps, N), bool)
    restart[[0, steps // 3, 2 * steps // 3], 0] = True
    restart[steps // 2, 1] = steps > 1
    return {**arguments, "restart": restart}


def tensors(arguments: Arrays) -> dict[str, Any]:
    return {k: tf.constant(v) if v.dtype == bool else tf.constant(v, tf.float32) for k, v in arguments.items()}


def graph(function: Any, arguments: Arrays, known: bool) -> Any:
    """Return the results of `function` as a graph. `known`: whether the graph knows T and N."""
    unknown = {"x": [None, None, FEATURES], "restart": [None, None], "h": [None, CELLS], "c": [None, CELLS]}
    signature = {
        name: tf.TensorSpec(tensor.shape if known else unknown.get(name, tensor.shape), tensor.dtype, name=name)
        for name, tensor in tensors(arguments).items()
    }
    return tf.function(lambda arguments: function(**arguments), input_signature=[signature])(tensors(arguments))


def test_gates_match_hand_calculation() -> None:
    # Results do not depend on x and h: i = 1/2, f = 3/4, g = 1/2, o = 4/5.  c' = 3/4 * 2 + 1/2 * 1/2 = 7/4.
    bias = np.array([0, math.log(3), math.atanh(0.5), math.log(4)], np.float32)
    x, h, c = np.ones((1, 5), np.float32), np.ones((1, 1), np.float32), np.full((1, 1), 2, np.float32)
    kernel = np.zeros((6, 4), np.float32)
    new_h, new_c = lstm_numpy(x, h, c, kernel, bias)
    np.testing.assert_allclose(new_c, [[1.75]], rtol=1e-6)
    np.testing.assert_allclose(new_h, [[0.8 * math.tanh(1.75)]], rtol=1e-6)
    outputs, last_h, last_c = lstm(x[None], h, c, tf.constant([[False]]), kernel, bias)
    np.testing.assert_allclose(outputs, [[[0.8 * math.tanh(1.75)]]], rtol=1e-6)
    assert (last_h.numpy().item(), last_c.numpy().item()) == (outputs.numpy().item(), pytest.approx(1.75))


def test_restart_sets_the_state_to_zero() -> None:
    # Gates as above, but o = sigmoid(h).  After a restart c' = 1/4 and o = 1/2.
    kernel = np.array([[0, 0, 0, 0], [0, 0, 0, 1]], np.float32)
    bias = np.array([0, math.log(3), math.atanh(0.5), 0], np.float32)
    one = np.ones((1, 1), np.float32)
    outputs, _, c = lstm(one[None], one, 2 * one, tf.constant([[True]]), kernel, bias)
    np.testing.assert_allclose((outputs.numpy().item(), c.numpy().item()), (0.5 * math.tanh(0.25), 0.25), rtol=1e-6)
    outputs, _, c = lstm(one[None], one, 2 * one, tf.constant([[False]]), kernel, bias)
    expected = (math.tanh(1.75) / (1 + math.exp(-1)), 1.75)
    np.testing.assert_allclose((outputs.numpy().item(), c.numpy().item()), expected, rtol=1e-6)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("steps", fast_and_slow([1, 6, 80], [1, 6], "relaax/nn"))
def test_rollout_equals_single_steps(steps: int, known: bool) -> None:
    arguments = some_arguments(steps)
    for found, expected in zip(graph(lstm, arguments, known), unrolled(arguments), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_numpy_steps_equal_rollout() -> None:
    arguments = some_arguments(12)
    outputs, last_h, last_c = unrolled(arguments)
    x, h, c, kernel, bias = (arguments[name].astype(np.float32) for name in VARIED)
    for t, restart in enumerate(arguments["restart"]):
        h, c = lstm_numpy(x[t], np.where(restart[:, None], 0, h), np.where(restart[:, None], 0, c), kernel, bias)
        np.testing.assert_allclose(h, outputs[t], atol=1e-5)
    np.testing.assert_allclose(h, last_h, atol=1e-5)
    np.testing.assert_allclose(c, last_c, atol=1e-5)
    assert h.dtype == c.dtype == np.float32


def test_numpy_lstm_does_not_change_arguments_or_overflow() -> None:
    x, h, c, kernel, bias = (1e4 * some_arguments(1)[name].astype(np.float32) for name in VARIED)
    given = [x[0], h, c, kernel, bias]
    kept = [argument.copy() for argument in given]
    new_h, new_c = lstm_numpy(*given)
    assert np.isfinite(new_h).all()
    assert np.isfinite(new_c).all()
    for argument, copy in zip(given, kept, strict=True):
        np.testing.assert_array_equal(argument, copy)


def weights_of(arguments: Arrays) -> list[np.ndarray]:
    """Weights of all results, so that gradients flow from every step and from the last state."""
    rng = np.random.default_rng(7)
    return [rng.normal(size=shape) for shape in ((len(arguments["x"]), N, CELLS), (N, CELLS), (N, CELLS))]


def gradients(arguments: Arrays, known: bool) -> Arrays:
    weights = [tf.constant(weight, tf.float32) for weight in weights_of(arguments)]

    def found(**given: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(given)
            total = sum(tf.reduce_sum(w * y) for w, y in zip(weights, lstm(**given), strict=True))
        return tape.gradient(total, {name: given[name] for name in VARIED})

    return {name: slope.numpy() for name, slope in graph(found, arguments, known).items()}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("steps", fast_and_slow([1, 6, 11], [1, 6], "relaax/nn"))
def test_lstm_gradients_equal_finite_differences(steps: int, known: bool) -> None:
    arguments = some_arguments(steps, seed=steps)
    weights = weights_of(arguments)
    found = gradients(arguments, known)
    for name in VARIED:

        def total(value: Any, name: str = name) -> np.float64:
            results = unrolled({**arguments, name: value.numpy()})
            return np.float64(sum((w * y).sum() for w, y in zip(weights, results, strict=True)))

        assert found[name].shape == arguments[name].shape
        np.testing.assert_allclose(found[name], finite_differences(total, arguments[name], 1e-5), atol=2e-5)


def test_gradients_equal_sum_over_separate_episodes() -> None:
    arguments = some_arguments(9)
    arguments["restart"][:, 1] = arguments["restart"][:, 0]  # at 0, 3 and 6: three episodes of three steps
    whole = gradients(arguments, known=True)
    weights = weights_of(arguments)
    x, kernel, bias = (tf.constant(arguments[name], tf.float32) for name in ("x", "kernel", "bias"))
    zeros, never = tf.zeros([N, CELLS]), tf.zeros([3, N], tf.bool)
    parts = []
    for start in (0, 3, 6):
        with tf.GradientTape() as tape:
            tape.watch([kernel, bias])
            outputs, h, c = lstm(x[start : start + 3], zeros, zeros, never, kernel, bias)
            total = tf.reduce_sum(weights[0][start : start + 3].astype(np.float32) * outputs)
            if start == 6:
                total += tf.reduce_sum(weights[1].astype(np.float32) * h + weights[2].astype(np.float32) * c)
        parts.append([slope.numpy() for slope in tape.gradient(total, [kernel, bias])])
    np.testing.assert_allclose(whole["kernel"], sum(part[0] for part in parts), atol=1e-5)
    np.testing.assert_allclose(whole["bias"], sum(part[1] for part in parts), atol=1e-5)


def test_gradient_does_not_flow_back_over_restart() -> None:
    found = gradients(some_arguments(6), known=True)
    for name in ("h", "c"):  # the first environment's episode starts with the rollout, the other's does not
        assert not found[name][0].any()
        assert found[name][1].all()


def test_state_of_other_number_of_environments_is_refused() -> None:
    given = tensors(some_arguments(4))
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"not compatible"):
        lstm(**{**given, "h": given["h"][:1], "c": given["c"][:1]})
