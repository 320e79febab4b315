"""A convolution in numpy, for acting on a few images: a call of TensorFlow costs more than the arithmetic."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


def convolution_numpy(images: Array, kernel: Array, bias: Array, stride: int) -> Array:
    """`bias` + convolution without padding (cross-correlation, as networks have it): one product of matrices an image.

    An image's patches side by side are several times as large as the image: with those of one image at a time they
    stay in the processor's cache.

    Args:
      images: float32 [N, height, width, channels].
      kernel: float32 [rows, columns, channels, filters].
      bias: float32 [filters].
      stride: pixels between two applications.

    Returns:
      float32 [N, (height - rows) // stride + 1, (width - columns) // stride + 1, filters].

    Raises:
      ValueError: if the channels differ, or an image is smaller than the kernel.
    """
    rows, columns, channels, filters = kernel.shape
    count, height, width, depth = images.shape
    if depth != channels or height < rows or width < columns:
        raise ValueError(f"images {list(images.shape[1:])} do not fit a kernel {list(kernel.shape)}")
    images = np.ascontiguousarray(images)  # so that a row of a patch is one piece of memory
    high, wide = (height - rows) // stride + 1, (width - columns) // stride + 1
    # Not images.strides: numpy has any stride for an axis of length 1 and calls that contiguous.
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
