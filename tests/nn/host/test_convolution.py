"""Block convolutions compared with TensorFlow, forward and backward."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from relaax import machine_code
from relaax.nn.host import convolution as module
from relaax.nn.host.convolution import BlockConvolution
from relaax.nn.tensorflow_loading import tf

CASES = [
    # image, kernel, stride, filters
    ((20, 20, 16), 4, 2, 32),
    ((84, 84, 4), 8, 4, 16),
    ((9, 9, 8), 3, 1, 16),
    ((7, 12, 3), 5, 3, 4),  # a kernel that is not a multiple of its stride
    ((11, 8, 1), 3, 2, 17),  # one filter more than a vector register holds
    ((5, 5, 1), 5, 1, 2),  # one output
    ((6, 7, 2), 1, 1, 3),
    ((9, 7, 2), 2, 3, 33),  # some pixels are outside all kernels
    ((8, 8, 3), 5, 4, 5),
]


def images_of(dtype: Any, count: int, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, (count, *shape)).astype(dtype)


def parameters_of(image: tuple[int, ...], kernel: int, filters: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    weights = rng.standard_normal((kernel, kernel, image[2], filters)) / kernel
    return weights.astype(np.float32), rng.standard_normal(filters).astype(np.float32)


def forward(convolution: BlockConvolution, images: np.ndarray, relu: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return blocks and outputs."""
    blocks = np.zeros((len(images), convolution.blocks.size), np.float32)
    convolution.lay_out(images, blocks)
    products = blocks.reshape(-1, convolution.blocks.depth) @ convolution.matrix
    outputs = np.full((len(images), convolution.outputs.size), 7, np.float32)
    convolution.add(products, outputs, relu)
    return blocks, outputs


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(("image", "kernel", "stride", "filters"), CASES)
def test_block_convolution_equals_tensorflow(
    image: tuple[int, int, int], kernel: int, stride: int, filters: int, dtype: Any
) -> None:
    images, (weights, bias) = images_of(dtype, 3, image), parameters_of(image, kernel, filters)
    convolution = BlockConvolution(*image, kernel, stride, filters)
    convolution.set_parameters(weights, bias, 1 / 255)
    _, outputs = forward(convolution, images)
    expected = tf.nn.conv2d(images.astype(np.float32) / 255, weights, strides=stride, padding="VALID") + bias
    np.testing.assert_allclose(outputs.reshape(expected.shape), expected, atol=1e-5)


@pytest.mark.parametrize(("image", "kernel", "stride", "filters"), CASES)
def test_block_convolution_gradients_equal_tensorflow(
    image: tuple[int, int, int], kernel: int, stride: int, filters: int
) -> None:
    images, (weights, bias) = images_of(np.float32, 2, image) / 255, parameters_of(image, kernel, filters)
    convolution = BlockConvolution(*image, kernel, stride, filters)
    convolution.set_parameters(weights, bias, 1.0)
    blocks, outputs = forward(convolution, images)
    factors = np.random.default_rng(3).standard_normal(outputs.shape).astype(np.float32)
    with tf.GradientTape() as tape:
        variables = tf.constant(images), tf.constant(weights)
        tape.watch(variables)
        found = tf.nn.conv2d(variables[0], variables[1], strides=stride, padding="VALID")
        loss = tf.reduce_sum(found * factors.reshape(found.shape))
    by_images, by_weights = tape.gradient(loss, variables)
    products = np.zeros((len(images) * convolution.blocks.count, convolution.width), np.float32)
    convolution.spread(factors, products)
    rows = blocks.reshape(-1, convolution.blocks.depth)
    np.testing.assert_allclose(convolution.kernel_gradient(rows.T @ products, 1.0), by_weights, atol=1e-4)
    # The gradient by an image, in the blocks of the image.
    expected = np.zeros_like(blocks)
    convolution.lay_out(np.ascontiguousarray(by_images), expected)
    np.testing.assert_allclose(products @ convolution.matrix.T, expected.reshape(rows.shape), atol=1e-4)


@pytest.mark.parametrize("second", [(3, 2), (4, 2), (2, 3), (3, 1), (1, 1)])
def test_outputs_have_the_layout_of_the_next_convolution(second: tuple[int, int]) -> None:
    image, (kernel, stride) = (15, 13, 2), second
    images, (weights, bias) = images_of(np.uint8, 2, image), parameters_of(image, 4, 3)
    first = BlockConvolution(*image, 4, 2, 3)
    first.set_parameters(weights, bias, 1 / 255)
    following = BlockConvolution(first.high, first.wide, 3, kernel, stride, 5)
    more_weights, more_bias = parameters_of((0, 0, 3), kernel, 5)
    following.set_parameters(more_weights, more_bias, 1.0)
    _, plain = forward(first, images, relu=True)
    _, expected = forward(following, plain.reshape(2, first.high, first.wide, 3))
    first.continue_with(following)
    first.set_parameters(weights, bias, 1 / 255)
    _, blocks = forward(first, images, relu=True)
    products = blocks.reshape(-1, following.blocks.depth) @ following.matrix
    outputs = np.zeros_like(expected)
    following.add(products, outputs, relu=False)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_nan_stays_nan_through_a_relu() -> None:
    convolution = BlockConvolution(4, 4, 1, 2, 2, 1)
    convolution.set_parameters(np.full((2, 2, 1, 1), np.nan, np.float32), np.zeros(1, np.float32), 1.0)
    assert np.isnan(forward(convolution, np.ones((1, 4, 4, 1), np.float32), relu=True)[1]).all()


def test_relu_gradient_is_zero_for_zero_outputs() -> None:
    gradient = np.array([1, 2, 3, 4], np.float32)
    module.relu_gradient(gradient, np.array([0.5, 0, -1, 2], np.float32))
    assert gradient.tolist() == [1, 0, 0, 4]


def test_kernels_are_compiled_without_writable_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    njit = numba.njit

    def unwritable(*given: Any, **keys: Any) -> Any:
        if keys.pop("cache", False):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(*given, **keys)

    def double(numbers: Any) -> None:
        for i in range(len(numbers)):
            numbers[i] *= 2

    monkeypatch.setattr(numba, "njit", unwritable)
    numbers = np.ones(3, np.float32)
    machine_code.compiled_once(machine_code.FLAT)(double)()(numbers)
    assert numbers.tolist() == [2, 2, 2]
