"""Pictures of an environment for people: an observation as pixels, made smaller if it is large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_PICTURE_BYTES = 2**17
"""Maximum size of the pixels of a picture, so that a report with one fits in a message. It fits 209 x 209 colours."""


def picture_of(observation: npt.NDArray[Any]) -> tuple[int, int, bytes]:
    """Return height, width and pixels of an image, as in `Picture`.

    `observation`: uint8 or bool [H, W] or [H, W, C]. Three channels are red, green and blue. Of other channels, such as
    several frames, the largest value is shown. If the image is too large, rows and columns are left out evenly.
    """
    image = observation[..., None] if observation.ndim == 2 else observation
    if image.shape[2] != 3:
        image = image.max(axis=2, keepdims=True)
    step = 1
    while image[::step, ::step].size > MAX_PICTURE_BYTES:
        step += 1
    small = image[::step, ::step]
    pixels = small * np.uint8(255) if small.dtype == np.bool_ else small
    return small.shape[0], small.shape[1], np.ascontiguousarray(pixels, np.uint8).tobytes()


def image_part(shapes: Sequence[tuple[tuple[int, ...], Any]]) -> tuple[int, tuple[int, ...] | None] | None:
    """Return the index of the first elementary part that is an image, and its axes if channels come first.

    `shapes`: shape and dtype of each part. Returns None if no part is an image: uint8 [H, W] or [H, W, C], or bool
    [H, W, C].
    """
    for index, (shape, dtype) in enumerate(shapes):
        if len(shape) not in {"uint8": (2, 3), "bool": (3,)}.get(np.dtype(dtype).name, ()):
            continue
        is_channels_first = len(shape) == 3 and 2 * shape[0] <= min(shape[1:])
        return index, (1, 2, 0) if is_channels_first else None
    return None
