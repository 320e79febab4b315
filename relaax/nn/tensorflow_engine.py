"""TensorFlow's engine: images on a GPU, and the oracle that the host's engine is tested against."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.nn.engine import Engine, Loss, checked_derivatives
from relaax.nn.specification import NetworkSpec
from relaax.nn.tensorflow_loading import tf
from relaax.nn.tensorflow_network import forward

Array = npt.NDArray[np.float32]


class TensorFlowEngine(Engine):
    """Computes on whatever device TensorFlow has. Nothing is traced twice, whatever the lengths of batches."""

    def __init__(self, spec: NetworkSpec, input_dtype: Any) -> None:
        self._spec = spec
        self._layout = spec.layout()
        self._parameters: Any = None
        # Nothing here needs autograph, which costs memory, time and files.
        self._forward = tf.function(
            self._outputs,
            input_signature=[
                tf.TensorSpec([self._layout.size], tf.float32),
                tf.TensorSpec([None, None, *spec.inputs], tf.as_dtype(input_dtype)),
                tf.TensorSpec([None, spec.state_size], tf.float32),
                tf.TensorSpec([None, None], tf.bool),
            ],
            autograph=False,
        )

    def set_parameters(self, parameters: Array) -> None:
        self._layout.views(parameters)  # says what is wrong
        self._parameters = tf.convert_to_tensor(parameters)

    def act(self, inputs: npt.NDArray[Any], state: Array, keep: int | None = None) -> tuple[dict[str, Array], Array]:
        outputs, after = self._forward(self._parameters, inputs[None], state, np.zeros((1, len(inputs)), np.bool_))
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
            outputs, _ = self._forward(self._parameters, inputs, state, restart)
        computed = {head: output.numpy() for head, output in outputs.items()}
        by_outputs = checked_derivatives(loss(computed, slice(0, restart.size)), computed)
        derivatives = {head: tf.convert_to_tensor(by_outputs[head], tf.float32) for head in outputs}
        gradient: Array = tape.gradient(outputs, self._parameters, derivatives).numpy()
        return gradient

    def _outputs(self, flat: Any, inputs: Any, state: Any, restart: Any) -> tuple[dict[str, Any], Any]:
        """Heads as [T * N, width], and the state after the last step."""
        shapes = self._layout.shapes
        parts = zip(shapes.items(), tf.split(flat, self._layout.sizes), strict=True)
        named = {name: tf.reshape(part, shape) for (name, shape), part in parts}
        if inputs.dtype == tf.uint8:
            inputs = tf.cast(inputs, tf.float32) / 255.0
        outputs, state = forward(self._spec, named, inputs, state, restart)
        return {head: tf.reshape(output, [-1, self._spec.heads[head]]) for head, output in outputs.items()}, state
