"""Convolutions as products of matrices, without the patches that make a matrix of an image.

A kernel of side k that moves by s pixels covers m = ⌈k / s⌉ blocks of s x s pixels each way. So an image is laid out
in such blocks, [rows, columns, s * s * channels]; one product gives what each block contributes to each of the m * m
outputs that it touches; and an output is the sum of what m * m neighbouring blocks contribute to it. Where k is no
multiple of s the kernel is thought to have zeros beyond its end. Outputs are written as the blocks of the convolution
that follows.

Patches (im2col) are m * m times as large as the image, and writing them takes longer than their product. For the Atari
network this forward pass takes half the time, and its gradient is two products of the same shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.machine_code import FLAT, NUMBER, READ, Kernel, compiled, from_dtype, types

Array = npt.NDArray[np.float32]
Images = npt.NDArray[Any]

_ONE = np.uint64(1)
"""Keeps indices unsigned. A plain 1 makes them signed, and the loops over filters take four times as long."""
_NO_FLOOR, _RELU_FLOOR = np.float32(-np.inf), np.float32(0)


def _blocks_kernel(
    images: Any, blocks: Any, count: Any, height: Any, width: Any, channels: Any, rows: Any, columns: Any, side: Any
) -> None:
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
            if columns * side > width:  # the kernel reaches less far than its last block
                for i in range((width % side) * channels):
                    blocks[target + i] = images[source + i]


def _add_kernel(
    products: Any,
    bias: Any,
    outputs: Any,
    floor: Any,
    count: Any,
    high: Any,
    wide: Any,
    filters: Any,
    shifts: Any,
    out_rows: Any,
    out_columns: Any,
    side: Any,
) -> None:
    rows, columns = high + shifts - _ONE, wide + shifts - _ONE
    width, depth = shifts * shifts * filters, side * side * filters
    for block in range(count * out_rows * out_columns):
        start = block * depth
        image, top, left = (
            block // (out_rows * out_columns),
            (block // out_columns % out_rows) * side,
            (block % out_columns) * side,
        )
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


def _spread_kernel(
    gradient: Any,
    products: Any,
    count: Any,
    high: Any,
    wide: Any,
    filters: Any,
    shifts: Any,
    out_rows: Any,
    out_columns: Any,
    side: Any,
) -> None:
    rows, columns = high + shifts - _ONE, wide + shifts - _ONE
    width, depth = shifts * shifts * filters, side * side * filters
    for block in range(count * out_rows * out_columns):
        image, top, left = (
            block // (out_rows * out_columns),
            (block // out_columns % out_rows) * side,
            (block % out_columns) * side,
        )
        for y in range(top, min(top + side, high)):
            for x in range(left, min(left + side, wide)):
                at = block * depth + ((y - top) * side + x - left) * filters
                for down in range(shifts):
                    for right in range(shifts):
                        by = ((image * rows + y + down) * columns + x + right) * width
                        by += (down * shifts + right) * filters
                        for i in range(filters):
                            products[by + i] = gradient[at + i]


def _relu_gradient_kernel(gradient: Any, outputs: Any) -> None:
    for i in range(len(gradient)):
        gradient[i] = gradient[i] if outputs[i] > 0 else np.float32(0)


@cache  # to name a type takes numba longer than the kernel takes for an image
def _blocks(dtype: Any) -> Kernel:
    images = types.Array(from_dtype(np.dtype(dtype)), 1, "C", readonly=True)
    return compiled(_blocks_kernel, images, FLAT, *[NUMBER] * 7)


@cache
def _add() -> Kernel:
    return compiled(_add_kernel, READ, READ, FLAT, types.float32, *[NUMBER] * 8)


@cache
def _spread() -> Kernel:
    return compiled(_spread_kernel, READ, FLAT, *[NUMBER] * 8)


@cache
def _relu_gradient() -> Kernel:
    return compiled(_relu_gradient_kernel, FLAT, READ)


def compile_kernels() -> None:
    """Compile what images of bytes need, for a process that is forked later: seconds once, then milliseconds."""
    _blocks(np.uint8), _add(), _spread(), _relu_gradient()


@dataclass(frozen=True, slots=True)
class Blocks:
    """Images in blocks of side x side pixels: [rows, columns, side * side * channels]."""

    rows: int
    columns: int
    side: int
    channels: int

    @property
    def depth(self) -> int:
        """Numbers in a block."""
        return self.side * self.side * self.channels

    @property
    def count(self) -> int:
        """Blocks of an image."""
        return self.rows * self.columns

    @property
    def size(self) -> int:
        """Numbers of an image."""
        return self.count * self.depth


class BlockConvolution:
    """One convolution without padding: stride s, kernel [k, k, channels, filters].

    Args:
      height, width, channels: of its images.
      kernel, stride, filters: of the convolution.

    `blocks` is how it wants its images laid out, `outputs` how its outputs are: as blocks of one pixel, unless
    `continue_with` says otherwise.
    """

    def __init__(self, height: int, width: int, channels: int, kernel: int, stride: int, filters: int) -> None:
        self._image = height, width, channels
        self._kernel = kernel
        self.filters = filters
        self._shifts = shifts = math.ceil(kernel / stride)
        self.high, self.wide = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.blocks = Blocks(self.high + shifts - 1, self.wide + shifts - 1, stride, channels)
        self.outputs = Blocks(self.high, self.wide, 1, filters)
        self.width = shifts * shifts * filters
        """Numbers that a block contributes."""
        reach = shifts * stride
        self._padded = np.zeros((reach, reach, channels, filters), np.float32)
        self.matrix = np.zeros((self.blocks.depth, self.width), np.float32)
        """The kernel: [numbers in a block, numbers that it contributes]."""
        self._bias = np.zeros(filters, np.float32)
        self._add, self._spread = _add(), _spread()

    def continue_with(self, following: BlockConvolution) -> None:
        """Write outputs as the blocks of the convolution that takes them."""
        self.outputs = following.blocks
        self._bias = np.zeros(self.outputs.depth, np.float32)

    def set_parameters(self, kernel: Array, bias: Array, scale: float) -> None:
        """float32 [k, k, channels, filters] and [filters]. Images are thought to be multiplied by `scale`."""
        self._padded[: self._kernel, : self._kernel] = kernel
        m, s = self._shifts, self.blocks.side
        parts = self._padded.reshape(m, s, m, s, -1, self.filters).transpose(1, 3, 4, 0, 2, 5)
        np.multiply(parts, np.float32(scale), out=self.matrix.reshape(parts.shape))
        self._bias.reshape(-1, self.filters)[...] = bias

    def kernel_gradient(self, gradient: Array, scale: float) -> Array:
        """From the gradient of `matrix` to that of the kernel, float32 [k, k, channels, filters]."""
        m, s = self._shifts, self.blocks.side
        parts = gradient.reshape(s, s, -1, m, m, self.filters).transpose(3, 0, 4, 1, 2, 5)
        whole = parts.reshape(self._padded.shape)  # a copy
        scaled: Array = whole[: self._kernel, : self._kernel] * np.float32(scale)
        return scaled

    def lay_out(self, images: Images, blocks: Array) -> None:
        """Images [B, height, width, channels], contiguous, as float32 blocks [B, *size]."""
        shape = self.blocks
        _blocks(images.dtype)(
            images.reshape(-1), blocks.reshape(-1), len(images), *self._image, shape.rows, shape.columns, shape.side
        )

    def add(self, products: Array, outputs: Array, relu: bool) -> None:
        """Outputs, with their bias and perhaps their activation, from what blocks contribute.

        `products` float32 [B * blocks, width]; `outputs` float32 [B, size].
        """
        out, floor = self.outputs, _RELU_FLOOR if relu else _NO_FLOOR
        self._add(products.reshape(-1), self._bias, outputs.reshape(-1), floor, len(outputs), *self._shape(out))

    def spread(self, gradient: Array, products: Array) -> None:
        """The gradient of what blocks contribute from that of the outputs, shapes as for `add`.

        What contributes to no output is left as it is: `products` are zeros at first.
        """
        self._spread(gradient.reshape(-1), products.reshape(-1), len(gradient), *self._shape(self.outputs))

    def _shape(self, out: Blocks) -> tuple[int, ...]:
        return self.high, self.wide, self.filters, self._shifts, out.rows, out.columns, out.side


def relu_gradient(gradient: Array, outputs: Array) -> None:
    """The gradient before a relu from the one after it, in place: contiguous float32 of one shape each."""
    _relu_gradient()(gradient.reshape(-1), outputs.reshape(-1))
