"""TensorFlow's engine: for images on a GPU, and the reference in tests of the host's engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.nn.interfaces import Engine, Loss, checked_derivatives
from relaax.nn.specification import NetworkSpec
from relaax.nn.tensorflow_loading import tf

Array = npt.NDArray[np.float32]


class TensorFlowEngine(Engine):
    """An engine on the device of TensorFlow. Batches of other lengths do not trace the network again."""

    def __init__(self, spec: NetworkSpec, input_dtype: Any) -> None:
        self._spec = spec
        self._layout = spec.layout()
        self._parameters: Any = None
        self._no_mean = self._mean = tf.zeros(spec.inputs)
        # No autograph: it is not needed here, and costs memory, time and files.
        self._forward = tf.function(
            self._outputs,
            input_signature=[
                tf.TensorSpec([self._layout.size], tf.float32),
                tf.TensorSpec(spec.inputs, tf.float32),
                tf.TensorSpec([None, None, *spec.inputs], tf.as_dtype(input_dtype)),
                tf.TensorSpec([None, spec.state_size], tf.float32),
                tf.TensorSpec([None, None], tf.bool),
            ],
            autograph=False,
        )

    def set_parameters(self, parameters: Array, mean: Array | None = None) -> None:
        self._layout.views(parameters)  # raises ValueError if the length is wrong
        self._mean = self._no_mean if mean is None else tf.convert_to_tensor(mean)
        self._parameters = tf.convert_to_tensor(parameters)

    def act(self, inputs: npt.NDArray[Any], state: Array, keep: int | None = None) -> tuple[dict[str, Array], Array]:
        outputs, after = self._forward(
            self._parameters, self._mean, inputs[None], state, np.zeros((1, len(inputs)), np.bool_)
        )
        return {head: output.numpy() for head, output in outputs.items()}, after.numpy()

    def gradient(
        self,
        inputs: npt.NDArray[Any],
        state: Array,
        restart: npt.NDArray[np.bool_],
        loss: Loss,
        out: Array | None = None,
    ) -> Array:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._parameters)
            outputs, _ = self._forward(self._parameters, self._mean, inputs, state, restart)
        gradient: Array = tape.gradient(outputs, self._parameters, _derivatives(outputs, loss, restart.size)).numpy()
        return gradient

    def input_gradient(self, inputs: npt.NDArray[Any], loss: Loss) -> Array:
        given, count = tf.convert_to_tensor(inputs), len(inputs)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(given)
            no_state, no_restart = np.zeros((count, 0), np.float32), np.zeros((1, count), np.bool_)
            outputs, _ = self._forward(self._parameters, self._mean, given[None], no_state, no_restart)
        gradient: Array = tape.gradient(outputs, given, _derivatives(outputs, loss, count)).numpy()
        return gradient[:, self._spec.pixels :]

    def _outputs(self, flat: Any, mean: Any, inputs: Any, state: Any, restart: Any) -> tuple[dict[str, Any], Any]:
        """Return the heads' outputs, [T * N, width], and the state after the last step."""
        shapes = self._layout.shapes
        parts = zip(shapes.items(), tf.split(flat, self._layout.sizes), strict=True)
        named = {name: tf.reshape(part, shape) for (name, shape), part in parts}
        if inputs.dtype == tf.uint8:
            inputs = (tf.cast(inputs, tf.float32) - mean) / 255.0
        outputs, state = forward(self._spec, named, inputs, state, restart)
        return {head: tf.reshape(output, [-1, self._spec.heads[head]]) for head, output in outputs.items()}, state


Tensor = Any


def _derivatives(outputs: Mapping[str, Tensor], loss: Loss, count: int) -> dict[str, Tensor]:
    """Return the derivative of a loss by the outputs of `count` examples, in the form of the outputs."""
    computed = {head: output.numpy() for head, output in outputs.items()}
    by_outputs = checked_derivatives(loss(computed, slice(0, count)), computed)
    return {head: tf.convert_to_tensor(by_outputs[head], tf.float32) for head in outputs}


def forward(
    spec: NetworkSpec, parameters: Mapping[str, Tensor], inputs: Tensor, state: Tensor, restart: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """Compute a network over a rollout of T steps of N environments, a pure function of named tensors.

    `parameters`: named and shaped as in `spec.layout()`. `inputs`: float32 [T, N, *spec.inputs]. `state`: float32
    [N, spec.state_size], before the first step. `restart`: bool [T, N], True if an input starts an episode: the state
    before it is zero. Returns head name -> float32 [T, N, width], and the state after the last step.
    """
    inputs.shape.assert_has_rank(2 + len(spec.inputs))
    state.shape.assert_is_compatible_with([inputs.shape[1], spec.state_size])
    restart.shape.assert_is_compatible_with(inputs.shape[:2])
    sides = [tf.shape(inputs)[axis] if side is None else side for axis, side in enumerate(inputs.shape[:2])]
    examples = tf.reshape(inputs, [-1, *spec.inputs])
    outputs: dict[str, Tensor] = {}
    states: list[Tensor] = []
    for trunk, heads in spec.trunks().items():
        x = _features(spec, parameters, trunk, examples)
        if spec.lstm:
            h, c = (state[:, start * spec.lstm : (start + 1) * spec.lstm] for start in (len(states), len(states) + 1))
            x = tf.reshape(x, [*sides, x.shape[1]])
            x, h, c = lstm(x, h, c, restart, parameters[f"{trunk}lstm/kernel"], parameters[f"{trunk}lstm/bias"])
            x = tf.reshape(x, [-1, spec.lstm])
            states += [h, c]
        for head in heads:
            own = x[:, spec.stream(heads, head)] if spec.streams else x
            y = tf.linalg.matmul(own, parameters[f"{head}/kernel"]) + parameters[f"{head}/bias"]
            outputs[head] = tf.reshape(y, [*sides, spec.heads[head]])
    return outputs, tf.concat(states, axis=1) if states else state


def _features(spec: NetworkSpec, parameters: Mapping[str, Tensor], trunk: str, x: Tensor) -> Tensor:
    """Compute the convolutions and dense layers of a trunk: [B, *spec.inputs] -> [B, width]."""
    side = x[:, spec.pixels :] if spec.side_width else None
    if spec.image:
        x = tf.reshape(x[:, : spec.pixels], [-1, *spec.image])
    activation = {"relu": tf.nn.relu, "tanh": tf.nn.tanh}[spec.activation]
    for index, layer in enumerate(spec.convolutions):
        x = tf.nn.conv2d(x, parameters[f"{trunk}conv{index}/kernel"], strides=layer.stride, padding="VALID")
        x = activation(tf.nn.bias_add(x, parameters[f"{trunk}conv{index}/bias"]))
    x = tf.reshape(x, [-1, math.prod(x.shape[1:])])
    if side is not None:
        side = tf.linalg.matmul(side, parameters[f"{trunk}side/kernel"])
        x = tf.concat([x, activation(side + parameters[f"{trunk}side/bias"])], axis=1)
    for index in range(len(spec.dense)):
        x = tf.linalg.matmul(x, parameters[f"{trunk}dense{index}/kernel"])
        x = activation(x + parameters[f"{trunk}dense{index}/bias"])
    return x


def lstm(
    x: Tensor, h: Tensor, c: Tensor, restart: Tensor, kernel: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a layer of long short-term memory (Hochreiter and Schmidhuber 1997, forget gates from Gers et al. 2000).

    i, f, o = sigmoid(...), g = tanh(...) of [x, h] @ kernel + bias;  c' = f c + i g;  h' = o tanh(c').
    The order of the gates is input, forget, candidate, output.

    `x`: float32 [T, N, F]. `h`, `c`: float32 [N, C], outputs and cells before the first step. `restart`: bool
    [T, N], True if both are set to zero before an input. `kernel`: float32 [F + C, 4 C]. `bias`: float32 [4 C]. Returns
    the outputs, float32 [T, N, C], and h and c after the last step. TensorFlow derives the gradient.
    """
    features = x.shape[2]
    # The product with x is computed for all steps at once. Only the product with h depends on the previous step.
    given = tf.linalg.matmul(tf.reshape(x, [-1, features]), kernel[:features]) + bias
    given = tf.reshape(given, tf.concat([tf.shape(x)[:2], bias.shape], axis=0))
    given = tf.ensure_shape(given, [x.shape[0], h.shape[0], bias.shape[0]])
    keep = tf.cast(tf.logical_not(restart), tf.float32)[:, :, tf.newaxis]
    keep = tf.ensure_shape(keep, [x.shape[0], h.shape[0], 1])
    steps = tf.shape(x)[0]

    def step(t: Tensor, h: Tensor, c: Tensor, outputs: Tensor) -> tuple[Tensor, ...]:
        gates = given[t] + tf.linalg.matmul(h * keep[t], kernel[features:])
        i, f, g, o = tf.split(gates, 4, axis=-1)
        c = tf.sigmoid(f) * (c * keep[t]) + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        return t + 1, h, c, outputs.write(t, h)

    empty = tf.TensorArray(tf.float32, steps, element_shape=h.shape)
    _, h, c, outputs = tf.while_loop(lambda t, *_: t < steps, step, (0, h, c, empty))
    return outputs.stack(), h, c
