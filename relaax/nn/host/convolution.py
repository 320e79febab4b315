"""Convolutions as products of matrices, without patches of the image (im2col).

A kernel with side k and stride s covers m = ⌈k / s⌉ blocks of s x s pixels in each direction. So an image is stored as
such blocks, [rows, columns, s * s * channels]. One product gives the contribution of each block to each of the m * m
outputs that it affects. An output is the sum of the contributions of m * m neighbouring blocks. If k is not a multiple
of s, the kernel is padded with zeros. Outputs are written as the blocks of the next convolution.

Patches are m * m times as large as the image, and writing them takes longer than their product. For the Atari network,
a forward pass without patches takes half as long as one with patches. The gradient is two products of the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.machine_code import FLAT, NUMBER, READ, REAL, ArrayType, Kernel, TupleType, compiled_once
from relaax.nn.recycled_memory import Scratch
from relaax.nn.specification import NetworkSpec

Array = npt.NDArray[np.float32]
Images = npt.NDArray[Any]

_ONE = np.uint64(1)
"""An unsigned 1. With a signed 1, indices are signed, and the loops over filters take four times as long."""
_NO_FLOOR, _RELU_FLOOR = np.float32(-np.inf), np.float32(0)
_IMAGE = TupleType("uint64", 6)
_SHAPE = TupleType("uint64", 7)
_DTYPES = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float32 float64"

CHUNK_BYTES = 1 << 20
"""Size of the blocks and contributions that are computed at once, small enough to stay in the cache."""


def _blocks_kernel(images: Any, blocks: Any, count: Any, shape: Any) -> None:
    height, width, channels, rows, columns, side = shape
    piece, line = side * channels, width * channels
    depth = piece * side
    for image in range(count):
        for y in range(min(height, rows * side)):
            source = (image * height + y) * line
            target = (image * rows + y // side) * columns * depth + (y % side) * piece
            for _ in range(min(columns, width // side)):
                for i in range(piece):
                    blocks[target + i] = images[source + i]
                source += piece
                target += depth
            if columns * side > width:  # the last block is only partly inside the image
                for i in range((width % side) * channels):
                    blocks[target + i] = images[source + i]


_BLOCKS = {dtype: compiled_once(ArrayType(dtype), FLAT, NUMBER, _IMAGE)(_blocks_kernel) for dtype in _DTYPES.split()}


@compiled_once(ArrayType("uint8"), READ, FLAT, NUMBER, _IMAGE)
def _differences(images: Any, mean: Any, blocks: Any, count: Any, shape: Any) -> None:
    height, width, channels, rows, columns, side = shape
    piece, line = side * channels, width * channels
    depth = piece * side
    for image in range(count):
        for y in range(min(height, rows * side)):
            source, at = (image * height + y) * line, y * line
            target = (image * rows + y // side) * columns * depth + (y % side) * piece
            for _ in range(min(columns, width // side)):
                for i in range(piece):
                    blocks[target + i] = images[source + i] - mean[at + i]
                source += piece
                at += piece
                target += depth
            if columns * side > width:
                for i in range((width % side) * channels):
                    blocks[target + i] = images[source + i] - mean[at + i]


@cache
def _blocks(dtype: Any) -> Kernel:
    return _BLOCKS[np.dtype(dtype).name]()


@compiled_once(READ, READ, FLAT, REAL, NUMBER, _SHAPE)
def _add(products: Any, bias: Any, outputs: Any, floor: Any, count: Any, shape: Any) -> None:
    high, wide, filters, shifts, out_rows, out_columns, side = shape
    rows, columns = high + shifts - _ONE, wide + shifts - _ONE
    width, depth = shifts * shifts * filters, side * side * filters
    for block in range(count * out_rows * out_columns):
        start, image = block * depth, block // (out_rows * out_columns)
        top, left = (block // out_columns % out_rows) * side, (block % out_columns) * side
        for i in range(depth):
            outputs[start + i] = bias[i]
        for y in range(top, min(top + side, high)):
            for x in range(left, min(left + side, wide)):
                at = start + ((y - top) * side + x - left) * filters
                for down in range(shifts):
                    for right in range(shifts):
                        by = ((image * rows + y + down) * columns + x + right) * width
                        by += (down * shifts + right) * filters
                        for i in range(filters):
                            outputs[at + i] += products[by + i]
        for i in range(depth):
            outputs[start + i] = floor if outputs[start + i] < floor else outputs[start + i]  # nan stays nan


@compiled_once(READ, FLAT, NUMBER, _SHAPE)
def _spread(gradient: Any, products: Any, count: Any, shape: Any) -> None:
    high, wide, filters, shifts, out_rows, out_columns, side = shape
    rows, columns = high + shifts - _ONE, wide + shifts - _ONE
    width, depth = shifts * shifts * filters, side * side * filters
    for block in range(count * out_rows * out_columns):
        image = block // (out_rows * out_columns)
        top, left = (block // out_columns % out_rows) * side, (block % out_columns) * side
        for y in range(top, min(top + side, high)):
            for x in range(left, min(left + side, wide)):
                at = block * depth + ((y - top) * side + x - left) * filters
                for down in range(shifts):
                    for right in range(shifts):
                        by = ((image * rows + y + down) * columns + x + right) * width
                        by += (down * shifts + right) * filters
                        for i in range(filters):
                            products[by + i] = gradient[at + i]


@compiled_once(FLAT, READ)
def _relu_gradient(gradient: Any, outputs: Any) -> None:
    for i in range(len(gradient)):
        gradient[i] = gradient[i] if outputs[i] > 0 else np.float32(0)


def load_kernels() -> None:
    """Load the kernels for images of bytes before a fork."""
    _blocks(np.uint8), _differences(), _add(), _spread(), _relu_gradient()


@dataclass(frozen=True, slots=True)
class Blocks:
    """Images in blocks of side x side pixels: [rows, columns, side * side * channels]."""

    rows: int
    columns: int
    side: int
    channels: int

    @property
    def depth(self) -> int:
        """Return the number of elements of a block."""
        return self.side * self.side * self.channels

    @property
    def count(self) -> int:
        """Return the number of blocks of an image."""
        return self.rows * self.columns

    @property
    def size(self) -> int:
        """Return the number of elements of an image."""
        return self.count * self.depth


class BlockConvolution:
    """One convolution without padding: stride s, kernel [k, k, channels, filters].

    `height`, `width`, `channels`: of the images. `blocks`: the layout of the images. `outputs`: the layout of the
    outputs. By default, it has blocks of one pixel; `continue_with` changes it.
    """

    def __init__(self, height: int, width: int, channels: int, kernel: int, stride: int, filters: int) -> None:
        self._kernel = kernel
        self.filters = filters
        self._shifts = shifts = math.ceil(kernel / stride)
        self.high, self.wide = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.blocks = Blocks(self.high + shifts - 1, self.wide + shifts - 1, stride, channels)
        self._image = height, width, channels, self.blocks.rows, self.blocks.columns, stride
        self.width = shifts * shifts * filters
        """Number of contributions of a block."""
        reach = shifts * stride
        self._padded = np.zeros((reach, reach, channels, filters), np.float32)
        self.matrix = np.zeros((self.blocks.depth, self.width), np.float32)
        """The kernel: [elements of a block, contributions of a block]."""
        self._add, self._spread = _add(), _spread()
        self._write(Blocks(self.high, self.wide, 1, filters))

    def continue_with(self, following: BlockConvolution) -> None:
        """Write outputs in the layout of the next convolution."""
        self._write(following.blocks)

    def _write(self, outputs: Blocks) -> None:
        self.outputs = outputs
        self._bias = np.zeros(outputs.depth, np.float32)
        self._shape = self.high, self.wide, self.filters, self._shifts, outputs.rows, outputs.columns, outputs.side

    def set_parameters(self, kernel: Array, bias: Array, scale: float) -> None:
        """Use this kernel [k, k, channels, filters] and bias [filters]. `scale`: factor of the images' pixels."""
        self._padded[: self._kernel, : self._kernel] = kernel
        m, s = self._shifts, self.blocks.side
        parts = self._padded.reshape(m, s, m, s, -1, self.filters).transpose(1, 3, 4, 0, 2, 5)
        np.multiply(parts, np.float32(scale), out=self.matrix.reshape(parts.shape))
        self._bias.reshape(-1, self.filters)[...] = bias

    def kernel_gradient(self, gradient: Array, scale: float) -> Array:
        """Return the gradient by the kernel, float32 [k, k, channels, filters]. `gradient`: by `matrix`."""
        m, s = self._shifts, self.blocks.side
        parts = gradient.reshape(s, s, -1, m, m, self.filters).transpose(3, 0, 4, 1, 2, 5)
        whole = parts.reshape(self._padded.shape)  # a copy
        scaled: Array = whole[: self._kernel, : self._kernel] * np.float32(scale)
        return scaled

    def lay_out(self, images: Images, blocks: Array, mean: Array | None = None) -> None:
        """Write images [B, height, width, channels], contiguous, as float32 blocks [B, *size].

        `mean`: subtracted from images of uint8, float32 [height, width, channels]; None to subtract nothing.
        """
        if mean is None:
            _blocks(images.dtype)(images.reshape(-1), blocks.reshape(-1), len(images), self._image)
        else:
            _differences()(images.reshape(-1), mean.reshape(-1), blocks.reshape(-1), len(images), self._image)

    def add(self, products: Array, outputs: Array, relu: bool) -> None:
        """Compute outputs from the contributions of blocks, with the bias, and with the activation if `relu`.

        `products` float32 [B * blocks, width]; `outputs` float32 [B, size].
        """
        floor = _RELU_FLOOR if relu else _NO_FLOOR
        self._add(products.reshape(-1), self._bias, outputs.reshape(-1), floor, len(outputs), self._shape)

    def spread(self, gradient: Array, products: Array) -> None:
        """Compute the gradient by the contributions of blocks, from the gradient by the outputs. Shapes: see `add`.

        Contributions without an output are not written, so `products` must be zeros at first.
        """
        self._spread(gradient.reshape(-1), products.reshape(-1), len(gradient), self._shape)


def relu_gradient(gradient: Array, outputs: Array) -> None:
    """Compute the gradient before a relu from the one after it, in place. Both: contiguous float32 of one shape."""
    _relu_gradient()(gradient.reshape(-1), outputs.reshape(-1))


class Convolutions:
    """The convolutions of a trunk. They compute a few images at a time, so that all data fits into the cache.

    `layers`: the outputs of each convolution, float32 [B, size]. `forward` writes them, and `backward` reads them.
    """

    def __init__(self, spec: NetworkSpec, trunk: str, scratch: Scratch) -> None:
        self._tanh, self._scratch, self._scale = spec.activation == "tanh", scratch, 1.0
        self._mean: Array | None = None
        self._names = [f"{trunk}conv{index}" for index in range(len(spec.convolutions))]
        self._each: list[BlockConvolution] = []
        height, width, channels = spec.convolved
        for layer in spec.convolutions:
            convolution = BlockConvolution(height, width, channels, layer.kernel, layer.stride, layer.filters)
            if self._each:
                self._each[-1].continue_with(convolution)
            self._each.append(convolution)
            height, width, channels = convolution.high, convolution.wide, layer.filters
        self.sizes = [convolution.outputs.size for convolution in self._each]
        self._chunk = max(1, CHUNK_BYTES // max(4 * c.blocks.count * (c.blocks.depth + c.width) for c in self._each))

    def set_parameters(self, views: Mapping[str, Array], scale: float, mean: Array | None = None) -> None:
        """Use these kernels and biases. `scale`: factor of the images' pixels. The first kernel is multiplied by it.

        `mean`: see `BlockConvolution.lay_out`.
        """
        self._scale, self._mean = scale, mean
        for index, (convolution, name) in enumerate(zip(self._each, self._names, strict=True)):
            convolution.set_parameters(views[f"{name}/kernel"], views[f"{name}/bias"], 1.0 if index else scale)

    def forward(self, images: Images, layers: Sequence[Array]) -> None:
        """Compute the outputs for images [B, height, width, channels]."""
        for part in self._parts(len(images)):
            for index, convolution in enumerate(self._each):
                blocks = self._blocks(index, images, layers, part)
                products = self._scratch.array(("products", index), len(blocks), convolution.width)
                np.matmul(blocks, convolution.matrix, out=products)
                outputs = layers[index][part]
                convolution.add(products, outputs, relu=not self._tanh)
                if self._tanh:
                    np.tanh(outputs, out=outputs)

    def backward(
        self, images: Images, layers: Sequence[Array], gradient: Array, out: Mapping[str, Array], accumulate: bool
    ) -> None:
        """Write the gradient by the parameters, or add it if `accumulate`. `gradient` [B, size]: by the outputs."""
        take = self._scratch.array
        by_matrix = [take(("matrix", i), *c.matrix.shape) for i, c in enumerate(self._each)]
        by_bias = [take(("conv bias", i), 1, c.filters)[0] for i, c in enumerate(self._each)]
        for sums in (*by_matrix, *by_bias):
            sums.fill(0)
        for part in self._parts(len(images)):
            by_outputs = gradient[part]
            for index, convolution in reversed(list(enumerate(self._each))):
                if self._tanh:
                    tanh_gradient(by_outputs, layers[index][part], self._scratch)
                else:
                    relu_gradient(by_outputs, layers[index][part])
                pixels = by_outputs.reshape(-1, convolution.filters)
                by_bias[index] += np.dot(self._scratch.ones(len(pixels)), pixels)
                blocks = self._blocks(index, images, layers, part)
                by_products = take(("by products", index), len(blocks), convolution.width)
                convolution.spread(by_outputs, by_products)
                by_matrix[index] += np.matmul(
                    blocks.T, by_products, out=take(("product", index), *convolution.matrix.shape)
                )
                if index:
                    by_outputs = take(("by blocks", index), len(by_outputs), convolution.blocks.size)
                    np.matmul(by_products, convolution.matrix.T, out=by_outputs.reshape(blocks.shape))
        for index, (convolution, name) in enumerate(zip(self._each, self._names, strict=True)):
            by_kernel = convolution.kernel_gradient(by_matrix[index], 1.0 if index else self._scale)
            write_or_add(by_kernel, out[f"{name}/kernel"], accumulate)
            write_or_add(by_bias[index], out[f"{name}/bias"], accumulate)

    def _parts(self, count: int) -> list[slice]:
        return [slice(start, min(start + self._chunk, count)) for start in range(0, count, self._chunk)]

    def _blocks(self, index: int, images: Images, layers: Sequence[Array], part: slice) -> Array:
        """Return the input of a convolution for the images `part`: float32 [images * blocks, depth]."""
        shape = self._each[index].blocks
        if index:
            return layers[index - 1][part].reshape(-1, shape.depth)
        images = np.ascontiguousarray(images[part])
        blocks = self._scratch.array("blocks", len(images), shape.size)
        self._each[0].lay_out(images, blocks, self._mean)
        return blocks.reshape(-1, shape.depth)


def tanh_gradient(gradient: Array, outputs: Array, scratch: Scratch) -> None:
    """Compute the gradient before a hyperbolic tangent from the one after it, in place."""
    slope = scratch.array("slope", *outputs.shape)
    np.multiply(outputs, outputs, out=slope)
    np.subtract(1, slope, out=slope)
    gradient *= slope


def write_or_add(part: Array, out: Array, accumulate: bool) -> None:
    """Write a part of a gradient, or add it if `accumulate`."""
    if accumulate:
        out += part
    else:
        out[...] = part
