"""A trunk of a network and its heads: forward and backward, with BLAS and a few kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from relaax.nn.host.convolution import Convolutions, Images, tanh_gradient, write_or_add
from relaax.nn.host.kernels import product, product_of_relu, product_transposed, rectified_gradient, rectify
from relaax.nn.host.lstm import Lstm, LstmActivations
from relaax.nn.recycled_memory import Scratch
from relaax.nn.specification import NetworkSpec

Array = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


class Trunk:
    """A trunk and its heads: convolutions, the join with side numbers, dense layers, LSTM, and heads.

    `layers`: the outputs of each layer, float32 [B, width] (see `sizes`). `forward` writes them, and `backward` reads
    them. `place`: the index of the trunk in the network.
    """

    def __init__(self, spec: NetworkSpec, name: str, heads: tuple[str, ...], place: int, scratch: Scratch) -> None:
        self._name, self._scratch, self._tanh = name, scratch, spec.activation == "tanh"
        self._image, self._pixels, self._side_width = spec.image, spec.pixels, spec.side_width
        self._convolutions = Convolutions(spec, name, scratch) if spec.convolutions else None
        self._dense_names = [f"{name}dense{index}" for index in range(len(spec.dense))]
        self.heads: dict[str, tuple[slice, slice]] = {}
        """Rows and columns of each head in the kernel of all heads."""
        width = 0
        for head in heads:
            self.heads[head] = spec.stream(heads, head), slice(width, width + spec.heads[head])
            width += spec.heads[head]
        convolved = list(self._convolutions.sizes) if self._convolutions else []
        if spec.side_width:
            convolved.append(convolved[-1] + spec.side_width)
        dense, cells = spec.dense_widths(heads), spec.lstm
        self._first, self._last = len(convolved), len(convolved) + len(dense)
        """Indices of the first dense layer, and of the layer after the last one."""
        features = [*convolved, *dense][-1] if convolved or dense else math.prod(spec.inputs)
        self._lstm = Lstm(features, cells) if cells else None
        self._h, self._c = (slice(start * cells, (start + 1) * cells) for start in (2 * place, 2 * place + 1))
        """Columns of h and c in the state of the network."""
        self.sizes = [*convolved, *dense, *([4 * cells, cells, cells] if cells else []), width]
        # With streams, a part of this kernel is zero. For small heads, one product with it takes only some microseconds
        # more than a product for each head.
        self._head_kernel = np.zeros((cells or features, width), np.float32)
        self._head_bias = np.zeros(width, np.float32)
        self._dense: list[tuple[Array, Array]] = []
        """Kernel and bias of each dense layer. The last element is for all heads together."""
        self._joined: tuple[Array, Array] | None = None

    def set_parameters(self, views: Mapping[str, Array], scale: float, mean: Array | None = None) -> None:
        """Use these arrays. They must not change later. `scale`: factor of the images' pixels.

        `mean`: subtracted from them, float32 [height, width, channels]; None to subtract nothing.
        """
        if self._convolutions:
            self._convolutions.set_parameters(views, scale, mean)
        if self._lstm:
            self._lstm.set_parameters(*_layer(views, f"{self._name}lstm"))
        for head, (rows, columns) in self.heads.items():
            self._head_kernel[rows, columns], self._head_bias[columns] = _layer(views, head)
        if self._side_width:
            self._joined = _layer(views, f"{self._name}side")
        self._dense = [*(_layer(views, name) for name in self._dense_names), (self._head_kernel, self._head_bias)]

    def forward(
        self, inputs: Images, flat: Array, layers: Sequence[Array], state: Array, after: Array, restart: Mask | None
    ) -> None:
        """Compute all layers, and write this trunk's part of the state after the last step to `after`.

        `inputs`: [T * N, *spec.inputs]. `flat`: inputs for dense layers, float32 [T * N, features]. `state`, `after`:
        float32 [N, state size]. `restart`: bool [T, N], True if the state before a step is set to zero; None if it
        never is.
        """
        if self._convolutions:
            self._convolutions.forward(self._images(inputs), layers)
        if self._joined:
            self._join(inputs, layers[self._first - 2], layers[self._first - 1])
        x = layers[self._first - 1] if self._first else flat
        for index in range(self._first, self._last):
            y = layers[index]
            bias = self._multiply(x, index - self._first, y, rectified=index > 0)
            if self._tanh:
                y += bias
                np.tanh(y, out=y)
            else:
                rectify(y, bias)
            x = y
        if self._lstm:
            memory = LstmActivations(*layers[-4:-1])
            h, c = state[:, self._h], state[:, self._c]
            after[:, self._h], after[:, self._c] = self._lstm.forward(x, h, c, restart, memory)
            x = memory.outputs
        layers[-1] += self._multiply(x, -1, layers[-1], rectified=len(layers) > 1 and not self._lstm)

    def backward(
        self,
        inputs: Images,
        flat: Array,
        layers: Sequence[Array],
        gradients: Mapping[str, Array],
        out: Mapping[str, Array],
        accumulate: bool,
        state: Array,
        restart: Mask,
    ) -> None:
        """Write the gradient by the parameters to `out`, or add it if `accumulate` (not with an LSTM).

        `gradients`: by the heads' outputs, head -> float32 [T * N, width]. The other arguments: see `forward`.
        """
        gradient = self._by_outputs(layers[-1], gradients)
        x = layers[self._last - 1] if self._last else flat
        memory = LstmActivations(*layers[-4:-1]) if self._lstm else None
        by_kernel = self._scratch.array("kernel", *self._head_kernel.shape)
        np.matmul((memory.outputs if memory else x).T, gradient, out=by_kernel)
        by_bias = self._by_bias(gradient)
        for head, (rows, columns) in self.heads.items():
            write_or_add(by_kernel[rows, columns], out[f"{head}/kernel"], accumulate)
            write_or_add(by_bias[columns], out[f"{head}/bias"], accumulate)
        if self._last or memory:
            gradient = self._by_inputs("heads", gradient, self._head_kernel)
        if self._lstm and memory:
            h, c = state[:, self._h], state[:, self._c]
            gradient = self._lstm.backward(x, h, c, restart, memory, gradient, *_layer(out, f"{self._name}lstm"))
        for index in range(self._last - 1, self._first - 1, -1):
            self._before_activation(gradient, layers[index])
            kernel, _ = self._dense[index - self._first]
            by_kernel, by_bias = _layer(out, self._dense_names[index - self._first])
            write_or_add(self._by_bias(gradient), by_bias, accumulate)
            x = layers[index - 1] if index else flat
            if accumulate:
                by_kernel += np.matmul(x.T, gradient, out=self._scratch.array("kernel", *kernel.shape))
            else:
                np.matmul(x.T, gradient, out=by_kernel)
            if index:
                gradient = self._by_inputs(index, gradient, kernel)
        if self._joined:
            gradient = self._join_backward(inputs, layers[self._first - 1], gradient, out, accumulate)
        if self._convolutions:
            self._convolutions.backward(self._images(inputs), layers, gradient, out, accumulate)

    def backward_to_inputs(self, layers: Sequence[Array], gradients: Mapping[str, Array]) -> Array:
        """Return the gradient by the flat inputs, float32 [B, features]; with convolutions, by the side numbers.

        The result is valid until the next call. The arguments: see `backward`.
        """
        gradient = self._by_outputs(layers[-1], gradients)
        used = gradient.any(axis=1)
        if used.all():
            return self._backward_to_inputs(layers, gradient)
        # The smaller value of two critics depends on one of them: about half of the rows are 0.
        by_used = self._backward_to_inputs([layer[used] for layer in layers[:-1]], gradient[used])
        by_inputs = self._scratch.array("by inputs of the trunk", len(gradient), by_used.shape[1])
        by_inputs[used], by_inputs[~used] = by_used, 0
        return by_inputs

    def _backward_to_inputs(self, layers: Sequence[Array], gradient: Array) -> Array:
        gradient = self._by_inputs("heads", gradient, self._head_kernel)
        for index in range(self._last - 1, self._first - 1, -1):
            self._before_activation(gradient, layers[index])
            gradient = self._by_inputs(index, gradient, self._dense[index - self._first][0])
        if self._convolutions:
            assert self._joined is not None, "a gradient by the pixels of an image is not supported"
            by_side = self._by_side(layers[self._first - 1], gradient)
            gradient = self._by_inputs("side", by_side, self._joined[0])
        return gradient

    def _multiply(self, x: Array, layer: int, y: Array, rectified: bool) -> Array:
        """Compute a dense layer without bias and activation. Return the bias.

        `rectified`: x are another layer's activations.
        """
        kernel, bias = self._dense[layer]
        if rectified and len(x) == 1 and not self._tanh:
            product_of_relu(x[0], kernel, y[0])
        else:
            product(x, kernel, y)
        return bias

    def _activate(self, y: Array) -> None:
        if self._tanh:
            np.tanh(y, out=y)
        else:
            np.maximum(y, 0, out=y)

    def _before_activation(self, gradient: Array, outputs: Array) -> None:
        """Compute the gradient before an activation from the one after it, in place."""
        if self._tanh:
            tanh_gradient(gradient, outputs, self._scratch)
        else:
            rectified_gradient(gradient, outputs)

    def _by_outputs(self, outputs: Array, gradients: Mapping[str, Array]) -> Array:
        """Return the gradients by the heads' outputs as one array, float32 [B, width]."""
        gradient: Array = self._scratch.array("heads", *outputs.shape)
        for head, (_, columns) in self.heads.items():
            gradient[:, columns] = gradients[head]
        return gradient

    def _by_bias(self, gradient: Array) -> Array:
        """Return the gradient by the bias, float32 [width]: the sum over the rows."""
        by_bias: Array = self._scratch.array("bias", 1, gradient.shape[1])[0]
        np.dot(self._scratch.ones(len(gradient)), gradient, out=by_bias)
        return by_bias

    def _by_inputs(self, layer: object, gradient: Array, kernel: Array) -> Array:
        """Return the gradient by the inputs of a layer, float32 [B, inputs]."""
        by_inputs = self._scratch.array(("gradient", layer), len(gradient), kernel.shape[0])
        product_transposed(gradient, kernel, by_inputs)
        return by_inputs

    def _images(self, inputs: Images) -> Images:
        """Return the images of inputs with side numbers, or the inputs if they have no side numbers."""
        return inputs[:, : self._pixels].reshape(-1, *self._image) if self._image else inputs

    def _join(self, inputs: Images, convolved: Array, joined: Array) -> None:
        """Join the outputs of the last convolution with those of the dense layer for the side numbers."""
        assert self._joined is not None
        kernel, bias = self._joined
        joined[:, : -self._side_width] = convolved
        y = joined[:, -self._side_width :]
        np.add(inputs[:, self._pixels :] @ kernel, bias, out=y)
        self._activate(y)

    def _join_backward(
        self, inputs: Images, joined: Array, gradient: Array, out: Mapping[str, Array], accumulate: bool
    ) -> Array:
        """Return the gradient by the outputs of the last convolution, float32 [B, size]."""
        by_y = self._by_side(joined, gradient)
        by_kernel, by_bias = _layer(out, f"{self._name}side")
        write_or_add(inputs[:, self._pixels :].T @ by_y, by_kernel, accumulate)
        write_or_add(by_y.sum(axis=0), by_bias, accumulate)
        return np.ascontiguousarray(gradient[:, : -self._side_width])

    def _by_side(self, joined: Array, gradient: Array) -> Array:
        """Return the gradient by the outputs of the layer for side numbers before its activation, float32 [B, width].

        `gradient`: by `joined`, the outputs of the join.
        """
        y, by_y = joined[:, -self._side_width :], gradient[:, -self._side_width :]
        by_side: Array = by_y * (1 - y * y) if self._tanh else by_y * (y > 0)
        return by_side


def _layer(views: Mapping[str, Array], name: str) -> tuple[Array, Array]:
    """Return kernel and bias of a layer."""
    return views[f"{name}/kernel"], views[f"{name}/bias"]
