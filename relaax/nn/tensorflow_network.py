"""A network in TensorFlow, as a pure function of named tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from relaax.nn.specification import NetworkSpec
from relaax.nn.tensorflow_loading import tf
from relaax.nn.tensorflow_lstm import lstm

Tensor = Any


def forward(
    spec: NetworkSpec, parameters: Mapping[str, Tensor], inputs: Tensor, state: Tensor, restart: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the heads' outputs over a rollout of T steps of N environments.

    Args:
      spec: the network.
      parameters: float32 tensors named and shaped as in `spec.layout()`.
      inputs: float32 [T, N, *spec.inputs].
      state: float32 [N, spec.state_size], what an LSTM remembers before the first step.
      restart: bool [T, N]: the observation at t starts an episode, so the state is zero before it.

    Returns:
      head name -> float32 [T, N, width], and the state after the last step, float32 [N, spec.state_size].
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
    """Return what comes out of the convolutions and dense layers of a trunk: [B, *spec.inputs] -> [B, width]."""
    beside = x[:, spec.pixels :] if spec.beside else None
    if spec.image:
        x = tf.reshape(x[:, : spec.pixels], [-1, *spec.image])
    activation = {"relu": tf.nn.relu, "tanh": tf.nn.tanh}[spec.activation]
    for index, layer in enumerate(spec.convolutions):
        x = tf.nn.conv2d(x, parameters[f"{trunk}conv{index}/kernel"], strides=layer.stride, padding="VALID")
        x = activation(tf.nn.bias_add(x, parameters[f"{trunk}conv{index}/bias"]))
    x = tf.reshape(x, [-1, math.prod(x.shape[1:])])
    if beside is not None:
        beside = tf.linalg.matmul(beside, parameters[f"{trunk}beside/kernel"])
        x = tf.concat([x, activation(beside + parameters[f"{trunk}beside/bias"])], axis=1)
    for index in range(len(spec.dense)):
        x = tf.linalg.matmul(x, parameters[f"{trunk}dense{index}/kernel"])
        x = activation(x + parameters[f"{trunk}dense{index}/bias"])
    return x
