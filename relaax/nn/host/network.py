"""Networks without an LSTM in the host's memory: forward and backward, by BLAS and a few kernels.

Small ones without convolutions are left to `dense`, which takes one call for all of it.

TensorFlow takes 200 microseconds for a call whatever its size, and for the Atari network's gradient more than twice as
long. Outputs of the layers are kept, so that what was acted on need not be computed again for the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relaax.nn.host.convolution import BlockConvolution, Images, relu_gradient
from relaax.nn.host.dense import Dense
from relaax.nn.host.products import product, product_of_relu, product_transposed
from relaax.nn.networks import NetworkSpec

Array = npt.NDArray[np.float32]

BYTE_SCALE = 1 / 255
"""Bytes are pixels, and the network is given them from 0 to 1."""

CHUNK_BYTES = 1 << 20
"""Of blocks and what they contribute: they should be in the cache still when they are used again."""

FEW_MULTIPLICATIONS = 500_000
"""What one call may take for some examples of a dense network: for more, BLAS's products are faster."""


class Activations:
    """Outputs of every layer for up to `count` examples."""

    def __init__(self, count: int, sizes: list[list[int]]) -> None:
        self.count = count
        self.memory: Array = np.zeros(count * sum(map(sum, sizes)), np.float32)
        """All layers, one after the other."""
        self.layers: list[list[Array]] = []
        """Of each trunk: the convolutions, the dense layers, and the heads side by side, float32 [count, size] each."""
        self.outputs: dict[tuple[int, int], dict[str, Array]] = {}
        """The heads' outputs of rows that were asked for before."""
        start = 0
        for trunk in sizes:
            self.layers.append([])
            for size in trunk:
                self.layers[-1].append(self.memory[start : start + count * size].reshape(count, size))
                start += count * size


class HostNetwork:
    """Policy and value of a few examples at a time. Nothing large is allocated once every size has been seen.

    Raises ValueError where the network has an LSTM.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        if spec.lstm:
            raise ValueError("a network with an LSTM is TensorFlow's")
        self._layout = spec.layout()
        self._tanh = spec.activation == "tanh"
        self._trunks = [_Trunk(spec, name, heads) for name, heads in spec.trunks().items()]
        self._dense = None if spec.convolutions else Dense(spec)
        self._few = FEW_MULTIPLICATIONS // self._dense.multiplications if self._dense else 0
        self._parameters: Array = np.zeros(0, np.float32)
        self._scale = 1.0
        self._split = False  # whether the trunks have these parameters
        self._memory: dict[object, Array] = {}
        self._ones = np.ones(0, np.float32)
        self.sizes = [trunk.sizes for trunk in self._trunks]
        self.example_bytes = 4 * sum(map(sum, self.sizes))
        """What `Activations` take for one example."""

    def set_parameters(self, vector: Array, pixels: bool) -> None:
        """Take over float32 [P], which must not change any more. `pixels`: inputs are bytes."""
        if vector.shape != self._parameters.shape:
            self._layout.views(vector)  # says what is wrong
        self._parameters, self._scale, self._split = vector, BYTE_SCALE if pixels else 1.0, False

    def forward(self, inputs: Images, activations: Activations, at: int) -> None:
        """Compute the rows from `at` on of `activations` for inputs [B, *spec.inputs]."""
        if self._dense and len(inputs) <= self._few:
            features = self._flat(inputs)
            self._dense.forward(self._parameters, features, activations.memory, activations.count, at)
            return
        self._give_trunks()
        for trunk, layers in zip(self._trunks, activations.layers, strict=True):
            self._forward(trunk, inputs, [layer[at : at + len(inputs)] for layer in layers])

    def outputs(self, activations: Activations, start: int, stop: int) -> dict[str, Array]:
        """Views of the heads' outputs, float32 [stop - start, width], of the rows given."""
        outputs = activations.outputs.get((start, stop))
        if outputs is None:
            outputs = activations.outputs[start, stop] = {
                head: layers[-1][start:stop, columns]
                for trunk, layers in zip(self._trunks, activations.layers, strict=True)
                for head, columns in trunk.heads.items()
            }
        return outputs

    def backward(
        self,
        inputs: Images,
        activations: Activations,
        start: int,
        gradients: Mapping[str, Array],
        out: Array,
        further: bool,
    ) -> None:
        """The gradient by the parameters, into or, where `further`, added to `out`, float32 [P].

        Args:
          inputs: [B, *spec.inputs].
          activations: what the network computed of them, from row `start` on.
          start: that row.
          gradients: head -> float32 [B, width], by the heads' outputs.
          out: float32 [P].
          further: whether to add.
        """
        if self._dense and len(inputs) <= self._few:
            self._backward_dense(self._dense, inputs, activations, start, gradients, out, further)
            return
        self._give_trunks()
        views = self._layout.views(out)
        for trunk, layers in zip(self._trunks, activations.layers, strict=True):
            self._backward(
                trunk, inputs, [layer[start : start + len(inputs)] for layer in layers], gradients, views, further
            )

    def _give_trunks(self) -> None:
        """Most parameters of small networks never need it."""
        if not self._split:
            views = self._layout.views(self._parameters)
            for trunk in self._trunks:
                trunk.set_parameters(views, self._scale)
            self._split = True

    def _backward_dense(
        self,
        dense: Dense,
        inputs: Images,
        activations: Activations,
        start: int,
        gradients: Mapping[str, Array],
        out: Array,
        further: bool,
    ) -> None:
        count = len(inputs)
        by_outputs = self._scratch("by outputs", count * dense.width, 1).reshape(-1)
        for head, (target, width, columns) in dense.heads.items():
            part = by_outputs[target * count : (target + width) * count]
            part.reshape(count, width)[:, columns] = gradients[head]
        if not further:
            out.fill(0)
        features, memory = self._flat(inputs), activations.memory
        dense.backward(self._parameters, features, memory, activations.count, start, by_outputs, out)

    def _forward(self, trunk: _Trunk, inputs: Images, layers: list[Array]) -> None:
        if trunk.convolutions:
            self._convolve(trunk, inputs, layers)
        x = self._features(trunk, inputs, layers)
        for index, (kernel, bias) in enumerate(trunk.dense, len(trunk.convolutions)):
            y = layers[index]
            if len(x) == 1 and index and not self._tanh:
                product_of_relu(x[0], kernel, y[0])
            else:
                product(x, kernel, y)
            y += bias
            if index == len(layers) - 1:
                break  # the heads
            if self._tanh:
                np.tanh(y, out=y)
            else:
                np.maximum(y, 0, out=y)
            x = y

    def _convolve(self, trunk: _Trunk, inputs: Images, layers: list[Array]) -> None:
        for images in trunk.chunks(len(inputs)):
            for index, convolution in enumerate(trunk.convolutions):
                blocks = self._blocks(trunk, index, inputs[images], layers, images)
                products = self._scratch(("products", index), len(blocks), convolution.width)
                np.matmul(blocks, convolution.matrix, out=products)
                outputs = layers[index][images]
                convolution.add(products, outputs, relu=not self._tanh)
                if self._tanh:
                    np.tanh(outputs, out=outputs)

    def _backward(
        self,
        trunk: _Trunk,
        inputs: Images,
        layers: list[Array],
        gradients: Mapping[str, Array],
        out: Mapping[str, Array],
        further: bool,
    ) -> None:
        count, convolutions = len(inputs), len(trunk.convolutions)
        gradient = self._scratch("heads", count, trunk.sizes[-1])
        for head, columns in trunk.heads.items():
            gradient[:, columns] = gradients[head]
        for index in range(len(layers) - 1, convolutions - 1, -1):
            before = layers[index - 1] if index > convolutions else self._features(trunk, inputs, layers)
            kernel, _ = trunk.dense[index - convolutions]
            by_bias = self._scratch("bias", 1, kernel.shape[1])[0]
            np.dot(self._ones_of(count), gradient, out=by_bias)
            if index == len(layers) - 1:
                by_kernel = self._scratch("kernel", *kernel.shape)
                np.matmul(before.T, gradient, out=by_kernel)
                for head, columns in trunk.heads.items():
                    _put(by_kernel[:, columns], out[f"{head}/kernel"], further)
                    _put(by_bias[columns], out[f"{head}/bias"], further)
            else:
                name = trunk.dense_names[index - convolutions]
                _put(by_bias, out[f"{name}/bias"], further)
                if further:
                    by_kernel = self._scratch("kernel", *kernel.shape)
                    out[f"{name}/kernel"][...] += np.matmul(before.T, gradient, out=by_kernel)
                else:
                    np.matmul(before.T, gradient, out=out[f"{name}/kernel"])
            if index > 0:
                earlier = self._scratch(("gradient", index), count, kernel.shape[0])
                product_transposed(gradient, kernel, earlier)
                if index > convolutions:
                    self._before_activation(earlier, before)
                gradient = earlier
        if convolutions:
            self._backward_convolutions(trunk, inputs, layers, gradient, out, further)

    def _backward_convolutions(
        self,
        trunk: _Trunk,
        inputs: Images,
        layers: list[Array],
        gradient: Array,
        out: Mapping[str, Array],
        further: bool,
    ) -> None:
        """`gradient` float32 [B, size] is by the outputs of the last convolution."""
        by_matrix = [self._scratch(("matrix", i), *c.matrix.shape) for i, c in enumerate(trunk.convolutions)]
        by_bias = [self._scratch(("conv bias", i), 1, c.filters)[0] for i, c in enumerate(trunk.convolutions)]
        for part in (*by_matrix, *by_bias):
            part.fill(0)
        for images in trunk.chunks(len(inputs)):
            by_outputs = gradient[images]
            for index in range(len(trunk.convolutions) - 1, -1, -1):
                convolution = trunk.convolutions[index]
                if self._tanh:
                    self._before_activation(by_outputs, layers[index][images])
                else:
                    relu_gradient(by_outputs, layers[index][images])
                pixels = by_outputs.reshape(-1, convolution.filters)
                by_bias[index] += np.dot(self._ones_of(len(pixels)), pixels)
                blocks = self._blocks(trunk, index, inputs[images], layers, images)
                by_products = self._scratch(("by products", index), len(blocks), convolution.width)
                convolution.spread(by_outputs, by_products)
                further_matrix = self._scratch(("further", index), *convolution.matrix.shape)
                by_matrix[index] += np.matmul(blocks.T, by_products, out=further_matrix)
                if index:
                    by_outputs = self._scratch(("by blocks", index), len(by_outputs), convolution.blocks.size)
                    np.matmul(by_products, convolution.matrix.T, out=by_outputs.reshape(blocks.shape))
        for index, convolution in enumerate(trunk.convolutions):
            name = f"{trunk.name}conv{index}"
            kernel = out[f"{name}/kernel"]
            scale = trunk.scale if index == 0 else 1.0
            _put(convolution.kernel_gradient(by_matrix[index], scale), kernel, further)
            _put(by_bias[index], out[f"{name}/bias"], further)

    def _blocks(self, trunk: _Trunk, index: int, inputs: Images, layers: list[Array], images: slice) -> Array:
        """What the convolution takes in for some images: float32 [images * blocks, depth]."""
        shape = trunk.convolutions[index].blocks
        if index:
            return layers[index - 1][images].reshape(-1, shape.depth)
        blocks = self._scratch("blocks", len(inputs), shape.size)
        trunk.convolutions[0].lay_out(np.ascontiguousarray(inputs), blocks)
        return blocks.reshape(-1, shape.depth)

    def _features(self, trunk: _Trunk, inputs: Images, layers: list[Array]) -> Array:
        """What the dense layers take in, float32 [B, width]."""
        if trunk.convolutions:
            return layers[len(trunk.convolutions) - 1]
        return self._flat(inputs)

    def _flat(self, inputs: Images) -> Array:
        """Inputs as they are multiplied, float32 [B, features]."""
        flat = inputs.reshape(len(inputs), -1)
        if flat.dtype == np.float32 and self._scale == 1.0:
            return flat
        scaled = self._scratch("inputs", *flat.shape)
        np.multiply(flat, np.float32(self._scale), out=scaled, dtype=np.float32)
        return scaled

    def _before_activation(self, gradient: Array, outputs: Array) -> None:
        """The gradient before an activation from the one after it, in place."""
        if self._tanh:
            slope = self._scratch("slope", *outputs.shape)
            np.multiply(outputs, outputs, out=slope)
            np.subtract(1, slope, out=slope)
            gradient *= slope
        else:
            gradient *= outputs > 0

    def _scratch(self, name: object, rows: int, width: int) -> Array:
        """Memory [rows, width] for one use at a time; zeros at first."""
        memory = self._memory.get((name, width))
        if memory is None or len(memory) < rows:
            memory = self._memory[name, width] = np.zeros((rows, width), np.float32)
        return memory if len(memory) == rows else memory[:rows]

    def _ones_of(self, count: int) -> Array:
        if len(self._ones) < count:
            self._ones = np.ones(count, np.float32)
        return self._ones[:count]


class _Trunk:
    """The layers of a trunk and its heads."""

    def __init__(self, spec: NetworkSpec, name: str, heads: tuple[str, ...]) -> None:
        self.name = name
        self.scale = 1.0
        self.convolutions = _convolutions(spec)
        self.dense_names = [f"{name}dense{index}" for index in range(len(spec.dense))]
        self.heads: dict[str, slice] = {}
        width = 0
        for head in heads:
            self.heads[head] = slice(width, width + spec.heads[head])
            width += spec.heads[head]
        convolved = [convolution.outputs.size for convolution in self.convolutions]
        features = [*convolved, *spec.dense][-1] if convolved or spec.dense else math.prod(spec.inputs)
        self.sizes = [*convolved, *spec.dense, width]
        self._head_kernel = np.zeros((features, width), np.float32)
        self._head_bias = np.zeros(width, np.float32)
        self.dense: list[tuple[Array, Array]] = []
        """Kernel and bias of each dense layer, the heads side by side among them as the last one."""
        each = max((4 * c.blocks.count * (c.blocks.depth + c.width) for c in self.convolutions), default=1)
        self._chunk = max(1, CHUNK_BYTES // each)

    def chunks(self, count: int) -> list[slice]:
        """Parts of so many images, each of which the cache holds."""
        return [slice(start, min(start + self._chunk, count)) for start in range(0, count, self._chunk)]

    def set_parameters(self, views: Mapping[str, Array], scale: float) -> None:
        self.scale = scale
        for index, convolution in enumerate(self.convolutions):
            name = f"{self.name}conv{index}"
            convolution.set_parameters(views[f"{name}/kernel"], views[f"{name}/bias"], scale if index == 0 else 1.0)
        for head, columns in self.heads.items():
            self._head_kernel[:, columns] = views[f"{head}/kernel"]
            self._head_bias[columns] = views[f"{head}/bias"]
        self.dense = [(views[f"{name}/kernel"], views[f"{name}/bias"]) for name in self.dense_names]
        self.dense.append((self._head_kernel, self._head_bias))


def _convolutions(spec: NetworkSpec) -> list[BlockConvolution]:
    convolutions: list[BlockConvolution] = []
    if not spec.convolutions:
        return convolutions
    height, width, channels = spec.inputs
    for layer in spec.convolutions:
        convolution = BlockConvolution(height, width, channels, layer.kernel, layer.stride, layer.filters)
        if convolutions:
            convolutions[-1].continue_with(convolution)
        convolutions.append(convolution)
        height, width, channels = convolution.high, convolution.wide, layer.filters
    return convolutions


def _put(part: Array, out: Array, further: bool) -> None:
    if further:
        out += part
    else:
        out[...] = part
