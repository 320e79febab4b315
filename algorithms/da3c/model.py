"""The worker's copy of the network: acting and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from relaax.tf.losses import categorical_entropy, clip_by_norm, policy_gradient_loss, value_loss
from relaax.tf.networks import NetworkSpec, forward, forward_numpy

from .config import Config

Array = npt.NDArray[np.float32]

STATISTICS = ("loss/policy", "loss/value", "loss/entropy", "gradient/norm")


class Model:
    """Policy and value of one worker. Shapes are fixed at construction, so nothing is traced twice."""

    def __init__(self, spec: NetworkSpec, config: Config, environments: int, input_dtype: Any) -> None:
        self._spec = spec
        self._config = config
        self._layout = spec.layout()
        self._environments = environments
        self._views: dict[str, Array] = {}
        self._variables = {name: tf.Variable(tf.zeros(shape), name=name) for name, shape in self._layout.shapes.items()}
        inputs = tf.TensorSpec([None, *spec.inputs], tf.as_dtype(input_dtype))
        vector = tf.TensorSpec([None], tf.float32)
        self._assign = tf.function(self._assign_all, input_signature=[tf.TensorSpec([self._layout.size], tf.float32)])
        self._act = tf.function(self._forward, input_signature=[inputs])
        self._gradient = tf.function(
            self._loss_gradient, input_signature=[inputs, tf.TensorSpec([None], tf.int32), vector, vector]
        )

    def set_parameters(self, parameters: Array) -> None:
        """Take over float32 [P]."""
        self._views = self._layout.views(parameters)
        self._assign(tf.constant(parameters))

    def act(self, inputs: npt.NDArray[Any]) -> tuple[Array, Array]:
        """Logits float32 [N, A] and values float32 [N] of inputs [N, ...]."""
        if self._spec.convolutions:
            logits, values = self._act(tf.constant(inputs))
            return logits.numpy(), values.numpy()
        if inputs.dtype == np.uint8:
            inputs = inputs.astype(np.float32) / np.float32(255)
        outputs = forward_numpy(self._spec, self._views, inputs)
        return outputs["policy"], outputs["value"][:, 0]

    def gradient(
        self, inputs: npt.NDArray[Any], actions: npt.NDArray[np.int32], returns: Array, mask: Array
    ) -> tuple[Array, Array]:
        """The gradient of the loss over a rollout, float32 [P], clipped; and the numbers named by `STATISTICS`.

        Inputs [T x N, ...], actions int32 [T x N], returns and mask float32 [T x N]; a masked example counts nothing.
        """
        gradient, statistics = self._gradient(inputs, actions, returns, mask)
        return gradient.numpy(), statistics.numpy()

    def _assign_all(self, parameters: Any) -> None:
        parts = tf.split(parameters, self._layout.sizes)
        for variable, part in zip(self._variables.values(), parts, strict=True):
            variable.assign(tf.reshape(part, variable.shape))

    def _forward(self, inputs: Any) -> tuple[Any, Any]:
        if inputs.dtype == tf.uint8:
            inputs = tf.cast(inputs, tf.float32) / 255.0
        outputs = forward(self._spec, self._variables, inputs)
        return outputs["policy"], outputs["value"][:, 0]

    def _loss_gradient(self, inputs: Any, actions: Any, returns: Any, mask: Any) -> tuple[Any, Any]:
        """Mnih et al. 2016, Algorithm S3: sums over the rollout's steps, here averaged over the N environments."""
        config = self._config
        variables = list(self._variables.values())
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            logits, values = self._forward(inputs)
            policy = mask * policy_gradient_loss(logits, actions, returns - values)
            value = mask * value_loss(values, returns)
            entropy = mask * categorical_entropy(logits)
            loss = tf.reduce_sum(policy + config.value_loss_weight * value - config.entropy_beta * entropy)
            loss /= self._environments
        gradients = tape.gradient(loss, variables)
        flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], axis=0)
        clipped, norm = clip_by_norm(flat, config.rms_prop.gradient_norm_clipping)
        count = tf.maximum(tf.reduce_sum(mask), 1.0)
        means = [tf.reduce_sum(term) / count for term in (policy, value, entropy)]
        return clipped, tf.stack([*means, norm])
