"""Networks in the host's memory: forward and backward, by BLAS and a few kernels.

Small ones without convolutions, LSTM and streams are left to `dense`, which takes one call for all of it.

TensorFlow takes 200 microseconds for a call whatever its size, and for the Atari network's gradient more than twice as
long. Outputs of the layers are kept, so that what was acted on need not be computed again for the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relaax.nn.host.convolution import Images, relu_gradient
from relaax.nn.host.dense import Dense
from relaax.nn.host.kernels import product, product_of_relu, product_transposed
from relaax.nn.host.lstm import LstmActivations
from relaax.nn.host.trunk import Trunk
from relaax.nn.specification import NetworkSpec

Array = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

NO_STATE: Array = np.zeros((0, 0), np.float32)
NO_RESTART: Mask = np.zeros((0, 0), np.bool_)
"""Without an LSTM neither is looked at."""

BYTE_SCALE = 1 / 255
"""Bytes are pixels, and the network is given them from 0 to 1."""

FEW_MULTIPLICATIONS = 500_000
"""What one call may take for some examples of a dense network: for more, BLAS's products are faster."""


class Activations:
    """Outputs of every layer for up to `count` examples."""

    def __init__(self, count: int, sizes: list[list[int]]) -> None:
        self.count = count
        self.memory: Array = np.zeros(count * sum(map(sum, sizes)), np.float32)
        """All layers, one after the other."""
        self.layers: list[list[Array]] = []
        """Of each trunk: convolutions, what joins them with numbers beside the image, dense layers, an LSTM's gates,
        cells and outputs, and the heads side by side, float32 [count, size] each."""
        self.outputs: dict[tuple[int, int], dict[str, Array]] = {}
        """The heads' outputs of rows that were asked for before."""
        start = 0
        for trunk in sizes:
            self.layers.append([])
            for size in trunk:
                self.layers[-1].append(self.memory[start : start + count * size].reshape(count, size))
                start += count * size


class HostNetwork:
    """Compute a network for a few examples at a time. Nothing large is allocated once every size has been seen."""

    def __init__(self, spec: NetworkSpec) -> None:
        self._cells = spec.lstm
        self._image, self._pixels = spec.image, spec.pixels
        self._layout = spec.layout()
        self._tanh = spec.activation == "tanh"
        self._trunks = [Trunk(spec, name, heads) for name, heads in spec.trunks().items()]
        streams = spec.streams and any(len(trunk.heads) > 1 for trunk in self._trunks)
        self._dense = None if spec.convolutions or spec.lstm or streams else Dense(spec)
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

    def forward(
        self, inputs: Images, activations: Activations, at: int, state: Array = NO_STATE, restart: Mask | None = None
    ) -> Array:
        """Compute the rows from `at` on of `activations`.

        Args:
          inputs: [T * N, *spec.inputs].
          activations: are written.
          at: the first row.
          state: float32 [N, spec.state_size], what an LSTM remembers before the first step.
          restart: bool [T, N], True if the state before a step is zero; None if it is nowhere.

        Returns:
          The state after the last step, float32 [N, spec.state_size].
        """
        if self._dense and len(inputs) <= self._few:
            features = self._flat(inputs)
            self._dense.forward(self._parameters, features, activations.memory, activations.count, at)
            return state
        self._give_trunks()
        after = np.empty_like(state) if self._cells else state
        for index, (trunk, layers) in enumerate(zip(self._trunks, activations.layers, strict=True)):
            rows = [layer[at : at + len(inputs)] for layer in layers]
            x = self._features(trunk, inputs, rows)
            if trunk.lstm:
                at_h, at_c = self._state_of(index)
                memory = LstmActivations(*rows[-4:-1])
                after[:, at_h], after[:, at_c] = trunk.lstm.forward(x, state[:, at_h], state[:, at_c], restart, memory)
                x = memory.outputs
            kernel, bias = trunk.dense[-1]
            if len(x) == 1 and len(rows) > 1 and not self._tanh and not trunk.lstm:
                product_of_relu(x[0], kernel, rows[-1][0])
            else:
                product(x, kernel, rows[-1])
            rows[-1] += bias
        return after

    def _state_of(self, trunk: int) -> tuple[slice, slice]:
        """Return where a trunk's h and c stand in the state."""
        start, cells = 2 * trunk * self._cells, self._cells
        return slice(start, start + cells), slice(start + cells, start + 2 * cells)

    def outputs(self, activations: Activations, start: int, stop: int) -> dict[str, Array]:
        """Views of the heads' outputs, float32 [stop - start, width], of the rows given."""
        outputs = activations.outputs.get((start, stop))
        if outputs is None:
            outputs = activations.outputs[start, stop] = {
                head: layers[-1][start:stop, columns]
                for trunk, layers in zip(self._trunks, activations.layers, strict=True)
                for head, (_, columns) in trunk.heads.items()
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
        state: Array = NO_STATE,
        restart: Mask = NO_RESTART,
    ) -> None:
        """Compute the gradient by the parameters, into or, if `further`, added to `out`, float32 [P].

        Args:
          inputs: [T * N, *spec.inputs].
          activations: what the network computed of them, from row `start` on.
          start: that row.
          gradients: head -> float32 [T * N, width], by the heads' outputs.
          out: float32 [P].
          further: whether to add; False with an LSTM.
          state: as for `forward`.
          restart: as for `forward`.
        """
        if self._dense and len(inputs) <= self._few:
            self._backward_dense(self._dense, inputs, activations, start, gradients, out, further)
            return
        self._give_trunks()
        views = self._layout.views(out)
        for index, (trunk, layers) in enumerate(zip(self._trunks, activations.layers, strict=True)):
            at_h, at_c = self._state_of(index)
            rows = [layer[start : start + len(inputs)] for layer in layers]
            recurrent = state[:, at_h], state[:, at_c], restart
            self._backward(trunk, inputs, rows, gradients, views, further, recurrent)

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

    def _features(self, trunk: Trunk, inputs: Images, layers: list[Array]) -> Array:
        """Compute the convolutions and dense layers of a trunk; return what comes out of them, float32 [B, width]."""
        if trunk.convolutions:
            self._convolve(trunk, self._images(inputs), layers)
        if trunk.beside:
            trunk.beside.join(inputs, layers[trunk.first_dense - 2], layers[trunk.first_dense - 1])
        x = self._flattened(trunk, inputs, layers)
        for index, (kernel, bias) in enumerate(trunk.dense[:-1], trunk.first_dense):
            y = layers[index]
            if len(x) == 1 and index and not self._tanh:
                product_of_relu(x[0], kernel, y[0])
            else:
                product(x, kernel, y)
            y += bias
            if self._tanh:
                np.tanh(y, out=y)
            else:
                np.maximum(y, 0, out=y)
            x = y
        return x

    def _images(self, inputs: Images) -> Images:
        """Return the images of inputs that have numbers beside them, and others as they are."""
        return inputs[:, : self._pixels].reshape(-1, *self._image) if self._image else inputs

    def _convolve(self, trunk: Trunk, inputs: Images, layers: list[Array]) -> None:
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
        trunk: Trunk,
        inputs: Images,
        layers: list[Array],
        gradients: Mapping[str, Array],
        out: Mapping[str, Array],
        further: bool,
        recurrent: tuple[Array, Array, Mask],
    ) -> None:
        count, first = len(inputs), trunk.first_dense
        last = first + len(trunk.dense_names)  # the layer after the dense ones
        gradient = self._scratch("heads", count, trunk.sizes[-1])
        for head, (_, columns) in trunk.heads.items():
            gradient[:, columns] = gradients[head]
        kernel, _ = trunk.dense[-1]
        memory = trunk.memory(layers)
        features = layers[last - 1] if last > first else self._flattened(trunk, inputs, layers)
        before = memory.outputs if memory else features
        by_kernel, by_bias = self._scratch("kernel", *kernel.shape), self._by_bias(gradient)
        np.matmul(before.T, gradient, out=by_kernel)
        for head, (rows, columns) in trunk.heads.items():
            _put(by_kernel[rows, columns], out[f"{head}/kernel"], further)
            _put(by_bias[columns], out[f"{head}/bias"], further)
        if last > 0 or memory:
            gradient = self._by_inputs("heads", gradient, kernel)
        if trunk.lstm and memory:
            h, c, restart = recurrent
            by_kernel, by_bias = out[f"{trunk.name}lstm/kernel"], out[f"{trunk.name}lstm/bias"]
            gradient = trunk.lstm.backward(features, h, c, restart, memory, gradient, by_kernel, by_bias)
        for index in range(last - 1, first - 1, -1):
            self._before_activation(gradient, layers[index])
            before = layers[index - 1] if index > first else self._flattened(trunk, inputs, layers)
            kernel, _ = trunk.dense[index - first]
            name = trunk.dense_names[index - first]
            _put(self._by_bias(gradient), out[f"{name}/bias"], further)
            if further:
                by_kernel = self._scratch("kernel", *kernel.shape)
                out[f"{name}/kernel"][...] += np.matmul(before.T, gradient, out=by_kernel)
            else:
                np.matmul(before.T, gradient, out=out[f"{name}/kernel"])
            if index > 0:
                gradient = self._by_inputs(index, gradient, kernel)
        if trunk.beside:
            gradient = trunk.beside.backward(inputs, layers[first - 1], gradient, out, further)
        if trunk.convolutions:
            self._backward_convolutions(trunk, self._images(inputs), layers, gradient, out, further)

    def _by_bias(self, gradient: Array) -> Array:
        """Return the sum of the rows, float32 [width]."""
        by_bias: Array = self._scratch("bias", 1, gradient.shape[1])[0]
        np.dot(self._ones_of(len(gradient)), gradient, out=by_bias)
        return by_bias

    def _by_inputs(self, layer: object, gradient: Array, kernel: Array) -> Array:
        """Return the derivative by what a layer takes in, float32 [B, inputs]."""
        by_inputs = self._scratch(("gradient", layer), len(gradient), kernel.shape[0])
        product_transposed(gradient, kernel, by_inputs)
        return by_inputs

    def _backward_convolutions(
        self,
        trunk: Trunk,
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

    def _blocks(self, trunk: Trunk, index: int, inputs: Images, layers: list[Array], images: slice) -> Array:
        """Return what the convolution takes in for some images: float32 [images * blocks, depth]."""
        shape = trunk.convolutions[index].blocks
        if index:
            return layers[index - 1][images].reshape(-1, shape.depth)
        blocks = self._scratch("blocks", len(inputs), shape.size)
        trunk.convolutions[0].lay_out(np.ascontiguousarray(inputs), blocks)
        return blocks.reshape(-1, shape.depth)

    def _flattened(self, trunk: Trunk, inputs: Images, layers: list[Array]) -> Array:
        """Return what the dense layers take in, float32 [B, width]."""
        if trunk.convolutions:
            return layers[trunk.first_dense - 1]
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


def _put(part: Array, out: Array, further: bool) -> None:
    if further:
        out += part
    else:
        out[...] = part
