"""The layers below some heads of a network, with their parameters as they are multiplied."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.nn.host.convolution import BlockConvolution
from relaax.nn.host.lstm import Lstm, LstmActivations
from relaax.nn.specification import NetworkSpec

Array = npt.NDArray[np.float32]

CHUNK_BYTES = 1 << 20
"""Of blocks and what they contribute: they should be in the cache still when they are used again."""


class Trunk:
    """The layers of a trunk and its heads."""

    def __init__(self, spec: NetworkSpec, name: str, heads: tuple[str, ...]) -> None:
        self.name = name
        self.scale = 1.0
        self.convolutions = _convolutions(spec)
        self.dense_names = [f"{name}dense{index}" for index in range(len(spec.dense))]
        self.heads: dict[str, tuple[slice, slice]] = {}
        """Of each head its own rows and columns in the kernel of all heads."""
        width = 0
        for head in heads:
            self.heads[head] = spec.stream(heads, head), slice(width, width + spec.heads[head])
            width += spec.heads[head]
        self.beside = Beside(spec, name) if spec.beside else None
        convolved = [convolution.outputs.size for convolution in self.convolutions]
        if spec.beside:
            convolved.append(convolved[-1] + spec.beside)
        self.first_dense = len(convolved)
        """Where the dense layers begin among all, behind the convolutions and what is joined to them."""
        dense = spec.dense_widths(heads)
        features = [*convolved, *dense][-1] if convolved or dense else math.prod(spec.inputs)
        cells = spec.lstm
        self.lstm = Lstm(features, cells) if cells else None
        self.sizes = [*convolved, *dense, *([4 * cells, cells, cells] if cells else []), width]
        features = cells or features
        # Streams leave zeros in it: for heads of some numbers one product takes, within some microseconds, as long as
        # one for each head.
        self._head_kernel = np.zeros((features, width), np.float32)
        self._head_bias = np.zeros(width, np.float32)
        self.dense: list[tuple[Array, Array]] = []
        """Kernel and bias of each dense layer, the heads side by side among them as the last one."""
        each = max((4 * c.blocks.count * (c.blocks.depth + c.width) for c in self.convolutions), default=1)
        self._chunk = max(1, CHUNK_BYTES // each)

    def chunks(self, count: int) -> list[slice]:
        """Parts of so many images, each of which the cache holds."""
        return [slice(start, min(start + self._chunk, count)) for start in range(0, count, self._chunk)]

    def memory(self, layers: list[Array]) -> LstmActivations | None:
        """Return what the LSTM computed, of the trunk's layers."""
        return LstmActivations(*layers[-4:-1]) if self.lstm else None

    def set_parameters(self, views: Mapping[str, Array], scale: float) -> None:
        self.scale = scale
        if self.lstm:
            self.lstm.set_parameters(views[f"{self.name}lstm/kernel"], views[f"{self.name}lstm/bias"])
        for index, convolution in enumerate(self.convolutions):
            name = f"{self.name}conv{index}"
            convolution.set_parameters(views[f"{name}/kernel"], views[f"{name}/bias"], scale if index == 0 else 1.0)
        for head, (rows, columns) in self.heads.items():
            self._head_kernel[rows, columns] = views[f"{head}/kernel"]
            self._head_bias[columns] = views[f"{head}/bias"]
        if self.beside:
            self.beside.set_parameters(views)
        self.dense = [(views[f"{name}/kernel"], views[f"{name}/bias"]) for name in self.dense_names]
        self.dense.append((self._head_kernel, self._head_bias))


def _convolutions(spec: NetworkSpec) -> list[BlockConvolution]:
    convolutions: list[BlockConvolution] = []
    if not spec.convolutions:
        return convolutions
    height, width, channels = spec.convolved
    for layer in spec.convolutions:
        convolution = BlockConvolution(height, width, channels, layer.kernel, layer.stride, layer.filters)
        if convolutions:
            convolutions[-1].continue_with(convolution)
        convolutions.append(convolution)
        height, width, channels = convolution.high, convolution.wide, layer.filters
    return convolutions


class Beside:
    """A dense layer of a trunk, `spec.beside` wide, of all inputs behind the image.

    What is joined are the outputs of the last convolution, then those of this layer: float32 [B, size + beside].
    """

    def __init__(self, spec: NetworkSpec, trunk: str) -> None:
        self._name = f"{trunk}beside"
        self._pixels, self._width = spec.pixels, spec.beside
        self._tanh = spec.activation == "tanh"
        self._kernel: Array = np.zeros((0, 0), np.float32)
        self._bias: Array = np.zeros(0, np.float32)

    def set_parameters(self, views: Mapping[str, Array]) -> None:
        self._kernel, self._bias = views[f"{self._name}/kernel"], views[f"{self._name}/bias"]

    def join(self, inputs: npt.NDArray[Any], convolved: Array, joined: Array) -> None:
        """Compute `joined`. Inputs float32 [B, *spec.inputs], what came out of the convolutions float32 [B, size]."""
        joined[:, : -self._width] = convolved
        y = joined[:, -self._width :]
        np.add(inputs[:, self._pixels :] @ self._kernel, self._bias, out=y)
        if self._tanh:
            np.tanh(y, out=y)
        else:
            np.maximum(y, 0, out=y)

    def backward(
        self, inputs: npt.NDArray[Any], joined: Array, gradient: Array, out: Mapping[str, Array], further: bool
    ) -> Array:
        """Return the gradient by the convolutions' outputs, float32 [B, size].

        That by the parameters goes into `out`, or is added if `further`. `gradient`: by what was joined, float32
        [B, size + beside].
        """
        y, by_y = joined[:, -self._width :], gradient[:, -self._width :]
        by_y = by_y * (1 - y * y) if self._tanh else by_y * (y > 0)
        by_kernel, by_bias = out[f"{self._name}/kernel"], out[f"{self._name}/bias"]
        if not further:
            by_kernel.fill(0)
            by_bias.fill(0)
        by_kernel += inputs[:, self._pixels :].T @ by_y
        by_bias += by_y.sum(axis=0)
        return np.ascontiguousarray(gradient[:, : -self._width])
