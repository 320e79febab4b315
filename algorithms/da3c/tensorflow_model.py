"""The worker's network in TensorFlow: for an LSTM, and for a GPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from relaax.nn.devices import computes_on_gpu
from relaax.nn.distributions import Policy
from relaax.nn.losses import clip_by_norm, policy_gradient_loss, value_loss
from relaax.nn.networks import NetworkSpec, forward

from .config import Config
from .numpy_model import NumpyModel
from .rollout import Batch

Array = npt.NDArray[np.float32]

IMAGES_FOR_NUMPY = 16
"""So many images at once are acted on in numpy, more in TensorFlow. Measured with the Atari network on one core:
numpy takes a third of TensorFlow's time for one image, two thirds for 8, as long for 32.
"""


class TensorFlowModel:
    """See `model.Model`. Nothing is traced twice, whatever the lengths of batches."""

    def __init__(
        self,
        spec: NetworkSpec,
        policy: Policy,
        config: Config,
        input_dtype: Any,
        batch_shape: tuple[int | None, int | None],
    ) -> None:
        self._spec = spec
        self._policy = policy
        self._config = config
        self._layout = spec.layout()
        # Bound on the inputs that are acted on in numpy. What has no convolutions is too small for a GPU to pay.
        self._numpy_bound = math.inf if not spec.convolutions else 0 if computes_on_gpu() else IMAGES_FOR_NUMPY
        self._parameters: Array = np.zeros(0, np.float32)
        self._numpy = NumpyModel(spec)
        self._tensors: list[Any] | None = None  # the same for TensorFlow, made where they are asked for
        kind, flat = tf.as_dtype(input_dtype), tf.TensorSpec([self._layout.size], tf.float32)
        examples = tf.TensorSpec(batch_shape, tf.float32)
        # Nothing here needs autograph, which costs memory, time and files.
        self._split = tf.function(self._named, input_signature=[flat], autograph=False)
        self._act = tf.function(
            self._one_step,
            input_signature=[
                [tf.TensorSpec(shape, tf.float32) for shape in self._layout.shapes.values()],
                tf.TensorSpec([None, *spec.inputs], kind),
                tf.TensorSpec([None, spec.state_size], tf.float32),
            ],
            autograph=False,
        )
        self._gradient = tf.function(
            self._loss_gradient,
            input_signature=[
                flat,
                tf.TensorSpec([*batch_shape, *spec.inputs], kind),
                tf.TensorSpec([*batch_shape, *policy.action_shape], tf.as_dtype(policy.action_dtype)),
                *[examples] * 3,
                tf.TensorSpec([batch_shape[1], spec.state_size], tf.float32),
                tf.TensorSpec(batch_shape, tf.bool),
            ],
            autograph=False,
        )

    def set_parameters(self, parameters: Array) -> None:
        """Take over float32 [P], which must not change any more."""
        self._parameters = parameters
        self._numpy.set_parameters(parameters)
        self._tensors = None

    def act(self, inputs: npt.NDArray[Any], state: Array, keep: int | None = None) -> tuple[dict[str, Array], Array]:
        """See `Model`. Nothing is kept: TensorFlow's gradient needs more than the outputs."""
        if len(inputs) > self._numpy_bound:
            if self._tensors is None:
                self._tensors = self._split(self._parameters)
            outputs, after = self._act(self._tensors, inputs, state)
            return {head: output.numpy() for head, output in outputs.items()}, after.numpy()
        return self._numpy.act(inputs, state)

    def gradient(self, batch: Batch, memory: Array | None = None) -> tuple[Array, Array]:
        """See `Model`. TensorFlow computes in memory of its own."""
        gradient, statistics = self._gradient(
            self._parameters,
            batch.inputs,
            batch.actions,
            batch.advantages,
            batch.targets,
            batch.mask,
            batch.state,
            batch.restart,
        )
        return gradient.numpy(), statistics.numpy()

    def _named(self, flat: Any) -> list[Any]:
        parts = tf.split(flat, self._layout.sizes)
        return [tf.reshape(part, shape) for part, shape in zip(parts, self._layout.shapes.values(), strict=True)]

    def _one_step(self, tensors: Any, inputs: Any, state: Any) -> tuple[Any, Any]:
        outputs, state = self._forward(tensors, inputs[tf.newaxis], state, tf.zeros([1, tf.shape(inputs)[0]], tf.bool))
        return {head: output[0] for head, output in outputs.items()}, state

    def _forward(self, tensors: Any, inputs: Any, state: Any, restart: Any) -> tuple[Any, Any]:
        if inputs.dtype == tf.uint8:
            inputs = tf.cast(inputs, tf.float32) / 255.0
        return forward(self._spec, dict(zip(self._layout.shapes, tensors, strict=True)), inputs, state, restart)

    def _loss_gradient(
        self, flat: Any, inputs: Any, actions: Any, advantages: Any, targets: Any, mask: Any, state: Any, restart: Any
    ) -> tuple[Any, Any]:
        """Mnih et al. 2016, Algorithm S3: sums over the rollout's steps, here averaged over the N environments."""
        config = self._config
        environments = tf.cast(tf.shape(mask)[1], tf.float32)
        actions = tf.reshape(actions, [-1, *self._policy.action_shape])
        advantages, targets, mask = (tf.reshape(part, [-1]) for part in (advantages, targets, mask))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(flat)
            outputs, _ = self._forward(self._named(flat), inputs, state, restart)
            outputs = {head: tf.reshape(output, [-1, output.shape[2]]) for head, output in outputs.items()}
            policy = mask * policy_gradient_loss(self._policy.log_probability(outputs, actions), advantages)
            value = mask * value_loss(outputs["value"][:, 0], targets)
            entropy = mask * self._policy.entropy(outputs)
            loss = tf.reduce_sum(policy + config.value_loss_weight * value - config.entropy_beta * entropy)
            loss /= environments
        clipped, norm = clip_by_norm(tape.gradient(loss, flat), config.gradient_norm_clipping)
        count = tf.maximum(tf.reduce_sum(mask), 1.0)
        means = [tf.reduce_sum(term) / count for term in (policy, value, entropy)]
        return clipped, tf.stack([*means, norm])
