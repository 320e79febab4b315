"""Products of matrices for a few examples, which take as long as the larger matrix takes to come from memory."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.machine_code import ANY_ORDER, FLAT, READ, Kernel, compiled, types

Array = npt.NDArray[np.float32]

_NULL, _ZERO, _ONE, _TWO, _THREE, _FOUR = np.float32(0), *(np.uint64(number) for number in range(5))


SMALL_PRODUCT = 1_000_000
"""Multiplications in a product of matrices that OpenBLAS makes of them as they are. For a larger one it first copies
them, which for a few examples takes longer than the product: for 8 and a kernel of 2592 x 256, 190 us instead of 80.
"""

FEW = 16
"""Examples for which a product is made of small ones. For more the copies pay."""


def product(x: Array, kernel: Array, out: Array) -> None:
    """`x @ kernel` of x [B, inputs] and kernel [inputs, outputs], into out [B, outputs], float32."""
    if len(x) > FEW or x.size * kernel.shape[1] <= SMALL_PRODUCT:
        np.matmul(x, kernel, out=out)
        return
    step = max(1, SMALL_PRODUCT // out.size)
    np.matmul(x[:, :step], kernel[:step], out=out)
    further = np.empty_like(out)
    for start in range(step, len(kernel), step):
        part = slice(start, start + step)
        out += np.matmul(x[:, part], kernel[part], out=further)


def product_transposed(x: Array, kernel: Array, out: Array) -> None:
    """`x @ kernel.T` of x [B, outputs] and kernel [inputs, outputs], into out [B, inputs], float32."""
    if len(x) > FEW or x.size * len(kernel) <= SMALL_PRODUCT:
        np.matmul(x, kernel.T, out=out)
        return
    step = max(1, SMALL_PRODUCT // x.size)
    for start in range(0, len(kernel), step):
        part = slice(start, start + step)
        np.matmul(x, kernel[part].T, out=out[:, part])


def product_of_relu(x: Array, kernel: Array, out: Array) -> None:
    """`x @ kernel` for one example: x float32 [inputs], kernel [inputs, outputs], finite, and out [outputs].

    Rows of the kernel that count nothing are not read: of 2592 x 256 it takes a third, where 70 % of x are zero.
    """
    _multiply()(x, kernel, np.empty(len(x), np.uint64), out)


def compile_kernels() -> None:
    """For a process that is forked later: a second once, then milliseconds."""
    _multiply()


def _multiply_kernel(x: Any, kernel: Any, rows: Any, out: Any) -> None:
    count = _ZERO
    for i in range(len(x)):
        if x[i] != _NULL:
            rows[count] = i
            count += _ONE
    outputs = len(out)
    for j in range(outputs):
        out[j] = _NULL
    whole = count - count % _FOUR
    for at in range(_ZERO, whole, _FOUR):
        first, second, third, fourth = rows[at], rows[at + _ONE], rows[at + _TWO], rows[at + _THREE]
        a, b, c, d = x[first], x[second], x[third], x[fourth]
        for j in range(outputs):
            out[j] += (a * kernel[first, j] + b * kernel[second, j]) + (c * kernel[third, j] + d * kernel[fourth, j])
    for at in range(whole, count):
        row = rows[at]
        for j in range(outputs):
            out[j] += x[row] * kernel[row, j]


_KERNEL = types.Array(types.float32, 2, "C", readonly=True)


@cache
def _multiply() -> Kernel:
    return compiled(_multiply_kernel, READ, _KERNEL, types.Array(types.uint64, 1, "C"), FLAT, fastmath=ANY_ORDER)
