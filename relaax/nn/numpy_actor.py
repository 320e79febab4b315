"""An actor in plain numpy, without compiled kernels and TensorFlow, for programs that do not learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.nn.interfaces import Actor
from relaax.nn.specification import NetworkSpec

Array = npt.NDArray[np.float32]


class NumpyActor(Actor):
    """An actor in plain numpy. It ignores `keep`."""

    def __init__(self, spec: NetworkSpec) -> None:
        self._spec = spec
        self._layout = spec.layout()
        self._views: dict[str, Array] = {}
        self._mean: Array | None = None

    def set_parameters(self, parameters: Array, mean: Array | None = None) -> None:
        self._views, self._mean = self._layout.views(parameters), mean

    def act(self, inputs: npt.NDArray[Any], state: Array, keep: int | None = None) -> tuple[dict[str, Array], Array]:
        if inputs.dtype == np.uint8:
            inputs = inputs.astype(np.float32)
            if self._mean is not None:
                inputs -= self._mean
            inputs /= np.float32(255)
        return forward_numpy(self._spec, self._views, inputs, state)


def forward_numpy(
    spec: NetworkSpec, parameters: Mapping[str, Array], inputs: Array, state: Array
) -> tuple[dict[str, Array], Array]:
    """Compute one step of a network, as `relaax.nn.tensorflow_engine.forward` does.

    `parameters`: float32 arrays named and shaped as in `spec.layout()`. `inputs`: float32 [N, *spec.inputs]. `state`:
    float32 [N, spec.state_size], zero if an episode starts. Returns head name -> float32 [N, width], and the new state.
    """
    outputs: dict[str, Array] = {}
    new_state = np.empty_like(state) if spec.lstm else state
    for place, (trunk, heads) in enumerate(spec.trunks().items()):
        x = _features_numpy(spec, parameters, trunk, inputs)
        if spec.lstm:
            at_h, at_c = (slice(start * spec.lstm, (start + 1) * spec.lstm) for start in (2 * place, 2 * place + 1))
            kernel, bias = parameters[f"{trunk}lstm/kernel"], parameters[f"{trunk}lstm/bias"]
            x, new_state[:, at_c] = lstm_numpy(x, state[:, at_h], state[:, at_c], kernel, bias)
            new_state[:, at_h] = x
        for head in heads:
            own = x[:, spec.stream(heads, head)] if spec.streams else x
            outputs[head] = own @ parameters[f"{head}/kernel"] + parameters[f"{head}/bias"]
    return outputs, new_state


def _features_numpy(spec: NetworkSpec, parameters: Mapping[str, Array], trunk: str, x: Array) -> Array:
    """Compute the layers of a trunk. The outputs of each layer are a new array, so activations are applied in place."""
    side = x[:, spec.pixels :] if spec.side_width else None
    if spec.image:
        x = x[:, : spec.pixels].reshape(-1, *spec.image)
    for index, layer in enumerate(spec.convolutions):
        kernel, bias = parameters[f"{trunk}conv{index}/kernel"], parameters[f"{trunk}conv{index}/bias"]
        x = _activated(spec, convolution_numpy(x, kernel, bias, layer.stride))
    x = x.reshape(len(x), -1)
    if side is not None:
        side = side @ parameters[f"{trunk}side/kernel"]
        side += parameters[f"{trunk}side/bias"]
        x = np.concatenate([x, _activated(spec, side)], axis=1)
    for index in range(len(spec.dense)):
        x = x @ parameters[f"{trunk}dense{index}/kernel"]
        x += parameters[f"{trunk}dense{index}/bias"]
        x = _activated(spec, x)
    return x


def _activated(spec: NetworkSpec, x: Array) -> Array:
    activated: Array = np.tanh(x, out=x) if spec.activation == "tanh" else np.maximum(x, 0, out=x)
    return activated


def lstm_numpy(x: Array, h: Array, c: Array, kernel: Array, bias: Array) -> tuple[Array, Array]:
    """Compute one step of an LSTM: x float32 [N, F], h and c float32 [N, C]. Returns the new h and c."""
    features, cells = x.shape[1], h.shape[1]
    gates = x @ kernel[:features]
    gates += h @ kernel[features:]
    gates += bias
    # sigmoid(z) = (1 + tanh(z / 2)) / 2 does not overflow, and needs one call for all four gates.
    gates[:, : 2 * cells] *= 0.5
    gates[:, 3 * cells :] *= 0.5
    np.tanh(gates, out=gates)
    new_c: Array = (0.5 + 0.5 * gates[:, cells : 2 * cells]) * c
    new_c += (0.5 + 0.5 * gates[:, :cells]) * gates[:, 2 * cells : 3 * cells]
    new_h = np.tanh(new_c)
    new_h *= 0.5 + 0.5 * gates[:, 3 * cells :]
    return new_h, new_c


def convolution_numpy(images: Array, kernel: Array, bias: Array, stride: int) -> Array:
    """Return `bias` + convolution without padding (a cross-correlation), with one product of matrices per image.

    The patches of an image are several times as large as the image. With one image at a time, they stay in the
    processor's cache.

    `images`: float32 [N, height, width, channels]. `kernel`: float32 [rows, columns, channels, filters]. Returns
    float32 [N, (height - rows) // stride + 1, (width - columns) // stride + 1, filters]. Raises ValueError if the
    channels differ, or an image is smaller than the kernel.
    """
    rows, columns, channels, filters = kernel.shape
    count, height, width, depth = images.shape
    if depth != channels or height < rows or width < columns:
        raise ValueError(f"images {list(images.shape[1:])} do not fit a kernel {list(kernel.shape)}")
    images = np.ascontiguousarray(images)  # so that each row of a patch is contiguous
    high, wide = (height - rows) // stride + 1, (width - columns) // stride + 1
    # Not images.strides: in a contiguous array, numpy allows any stride for an axis of length 1.
    by_number, by_pixel = images.itemsize, images.itemsize * channels
    by_row, by_image = by_pixel * width, by_pixel * width * height
    windows = np.lib.stride_tricks.as_strided(
        images,
        (count, high, wide, rows, columns * channels),
        (by_image, stride * by_row, stride * by_pixel, by_row, by_number),
        writeable=False,
    )
    flat = kernel.reshape(-1, filters)
    outputs: Array = np.empty((count, high * wide, filters), np.float32)
    for window, output in zip(windows, outputs, strict=True):
        np.matmul(window.reshape(high * wide, -1), flat, out=output)
    outputs += bias
    return outputs.reshape(count, high, wide, filters)
