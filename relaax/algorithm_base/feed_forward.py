"""A network without memory as a function of the flat vector: numpy to act, TensorFlow to learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from relaax.nn.networks import NetworkSpec, forward, forward_numpy

Array = npt.NDArray[np.float32]
Tensor = Any


class FeedForward:
    """What a small algorithm needs of a dense network: its outputs from the vector that the bridge carries.

    `size` is the length P of that vector. Raises ValueError where the network has convolutions or an LSTM: they need
    `relaax.nn.networks.forward` itself.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        if spec.convolutions or spec.lstm:
            raise ValueError(f"a network of dense layers alone is needed, not {spec}")
        self.spec = spec
        self._layout = spec.layout()
        self.size = self._layout.size

    def act(self, parameters: Array, inputs: Array) -> dict[str, Array]:
        """The heads' outputs in numpy, which is the faster way for the few inputs that an agent acts on.

        `parameters` float32 [P], `inputs` float32 [N, *spec.inputs]; head name -> float32 [N, width].
        """
        views = self._layout.views(parameters)
        return forward_numpy(self.spec, views, inputs, np.zeros((len(inputs), 0), np.float32))[0]

    def outputs(self, parameters: Tensor, inputs: Tensor) -> dict[str, Tensor]:
        """The same numbers in TensorFlow, through which a gradient by the whole vector is taken.

        `parameters` float32 [P], `inputs` float32 [B, *spec.inputs]; head name -> float32 [B, width].
        """
        parts = tf.split(parameters, self._layout.sizes)
        shapes = self._layout.shapes.items()
        named = {name: tf.reshape(part, shape) for (name, shape), part in zip(shapes, parts, strict=True)}
        batch = tf.shape(inputs)[0]
        outputs, _ = forward(self.spec, named, inputs[None], tf.zeros([batch, 0]), tf.zeros([1, batch], tf.bool))
        return {head: output[0] for head, output in outputs.items()}
