from __future__ import annotations

import numpy as np
import pytest

from relaax.nn.numpy_actor import convolution_numpy
from relaax.nn.tensorflow_loading import tf


def test_convolution_of_one_channel_matches_hand_calculation() -> None:
    images = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.float32).reshape(1, 3, 3, 1)
    kernel = np.array([[1, 0], [0, 10]], np.float32).reshape(2, 2, 1, 1)
    found = convolution_numpy(images, kernel, np.array([100], np.float32), 1)
    # The pixel + 10 x the pixel below and to the right + 100.
    assert found.tolist() == [[[[151], [162]], [[184], [195]]]]


def test_channels_and_filters_match_hand_calculation() -> None:
    images = np.array([[[1, 2], [3, 4]]], np.float32).reshape(1, 1, 2, 2)  # two pixels of two channels
    kernel = np.array([[1, 10], [2, 20]], np.float32).reshape(1, 1, 2, 2)
    found = convolution_numpy(images, kernel, np.array([0, 1], np.float32), 1)
    assert found.tolist() == [[[[5, 51], [11, 111]]]]


def test_stride_skips_pixels_outside_kernels() -> None:
    images = np.arange(5, dtype=np.float32).reshape(1, 1, 5, 1)
    kernel = np.ones((1, 2, 1, 1), np.float32)
    found = convolution_numpy(images, kernel, np.zeros(1, np.float32), 3)
    assert found.ravel().tolist() == [0 + 1, 3 + 4]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("image", "kernel", "stride"),
    [
        ((84, 84, 4), (8, 8, 16), 4),
        ((20, 20, 16), (4, 4, 32), 2),
        ((9, 9, 32), (3, 3, 8), 1),
        ((7, 12, 3), (2, 5, 4), 3),
        ((5, 5, 1), (5, 5, 2), 1),
        ((6, 6, 2), (1, 1, 3), 2),
    ],
)
def test_numpy_convolution_equals_tensorflow(
    count: int, image: tuple[int, ...], kernel: tuple[int, ...], stride: int
) -> None:
    rng = np.random.default_rng(1)
    images = rng.random((count, *image), np.float32)
    rows, columns, filters = kernel
    weights = rng.standard_normal((rows, columns, image[2], filters)).astype(np.float32) / np.float32(rows * columns)
    bias = rng.standard_normal(filters).astype(np.float32)
    kept = images.copy()
    found = convolution_numpy(images, weights, bias, stride)
    expected = tf.nn.conv2d(images, weights, strides=stride, padding="VALID") + bias
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_array_equal(images, kept)


def test_non_contiguous_images_give_equal_results() -> None:
    rng = np.random.default_rng(2)
    images, gray = rng.random((4, 9, 8, 3), np.float32), rng.random((4, 9, 8), np.float32)
    views = (
        *(images.transpose(0, 2, 1, 3), images[::2], images[:, ::-1], images[..., ::-1]),
        *(
            gray[..., None],
            gray[:, None].transpose(0, 2, 3, 1),
            gray[:1, :, :, None],
        ),  # an axis of length 1 has any stride
    )
    for view in views:
        weights, bias = rng.random((3, 3, view.shape[3], 2), np.float32), np.zeros(2, np.float32)
        expected = tf.nn.conv2d(view.copy(), weights, strides=2, padding="VALID")
        np.testing.assert_allclose(convolution_numpy(view, weights, bias, 2), expected, atol=1e-5)


@pytest.mark.parametrize("image", [(9, 9, 4), (2, 9, 3), (9, 2, 3)])
def test_images_that_do_not_fit_kernel_are_refused(image: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        convolution_numpy(np.zeros((1, *image), np.float32), np.zeros((3, 3, 3, 1)), np.zeros(1), 1)  # type: ignore[arg-type]
