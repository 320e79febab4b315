"""Convert the leaves of an observation space to a network's inputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.frame_stack import FrameStack
from relaax.algorithm_base.step import Leaves, Mask
from relaax.rlx import Box, Discrete, MultiBinary, Space

Inputs = npt.NDArray[Any]

PICTURE_SIDE = 16
"""What has two axes or more of this length, or longer ones, looks like an image."""

_LARGEST = np.finfo(np.float32).max


class ObservationEncoder:
    """Network inputs for the N environments of a connection, with the frame history that images need.

    An image becomes uint8 [N, H, W, C x history]: one Box of uint8 and shape [H, W] or [H, W, C], or one of bool and
    shape [H, W, C], whose True becomes 255. Everything else becomes float32 [N, D]: numbers in C order, a Discrete as
    one-hot, the parts of a Tuple or Dict side by side. Bytes among these that look like an image are brought from
    0..255 to 0..1.
    """

    def __init__(self, space: Space, environments: int, history: int) -> None:
        self._elements = list(space.elements())
        self._pictures = [looks_like_image(e) and e.dtype == np.uint8 for e in self._elements]
        self._history = (
            FrameStack(environments, self._elements[0].shape, np.uint8, history) if is_image(space) else None
        )
        self.history = history
        self.shape = input_shape(space, history)

    @property
    def dtype(self) -> npt.DTypeLike:
        """uint8 for images, else float32."""
        return np.uint8 if self._history else np.float32

    def reset(self, observations: Leaves) -> Inputs:
        """Inputs where every environment starts an episode."""
        if self._history:
            return self._image(self._history.reset(_pixels(observations[0])))
        return self._vector(observations)

    def push(self, observations: Leaves, restart: Mask) -> Inputs:
        """Inputs after a step; where `restart` [N], the observation starts an episode."""
        if self._history:
            return self._image(self._history.push(_pixels(observations[0]), restart))
        return self._vector(observations)

    def peek(self, observations: Leaves) -> Inputs:
        """Inputs for final observations, with the history of the episode that they end; nothing is remembered."""
        if self._history:
            return self._image(self._history.peek(_pixels(observations[0])))
        return self._vector(observations)

    def _image(self, stack: Inputs) -> Inputs:
        return stack.reshape(len(stack), *self.shape)

    def _vector(self, observations: Leaves) -> Inputs:
        parts = []
        for element, leaf, picture in zip(self._elements, observations, self._pictures, strict=True):
            if isinstance(element, Discrete):
                # No indexing: rows of final observations where no episode ended may hold anything.
                parts.append((leaf[:, None] - element.start == np.arange(element.n)).astype(np.float32))
            elif picture:
                parts.append(leaf.reshape(len(leaf), -1) / np.float32(255))
            else:
                if leaf.dtype == np.float64:  # of which float32 holds a part only
                    leaf = np.clip(leaf, -_LARGEST, _LARGEST)
                parts.append(leaf.reshape(len(leaf), -1).astype(np.float32, copy=False))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _pixels(leaf: npt.NDArray[Any]) -> Inputs:
    """Return uint8 [N, H, W, ...] for pixels of uint8 or bool."""
    return leaf * np.uint8(255) if leaf.dtype == np.bool_ else leaf


def is_image(space: Space) -> bool:
    """Tell whether the space is one Box of pixels: of uint8, or of bool if it has channels."""
    if not isinstance(space, Box):
        return False
    axes = {np.dtype(np.uint8): (2, 3), np.dtype(np.bool_): (3,)}
    return len(space.shape) in axes.get(space.dtype, ())


def looks_like_image(element: Space) -> bool:
    """Tell whether an elementary part looks like an image, of whatever dtype and whichever axis its channels are."""
    return isinstance(element, Box) and sum(side >= PICTURE_SIDE for side in element.shape) > 1


def with_channels_last(space: Space) -> tuple[int, int, int] | None:
    """Return the shape [H, W, C] of an image that looks like [C, H, W]; None if it does not."""
    (element,) = space.elements() if is_image(space) else (None,)
    if element is None or len(element.shape) != 3:
        return None
    channels, height, width = element.shape
    return (height, width, channels) if 2 * channels <= min(height, width) else None


def input_shape(space: Space, history: int) -> tuple[int, ...]:
    """Shape of one network input."""
    if is_image(space):
        (element,) = space.elements()
        height, width, *channels = element.shape
        return height, width, math.prod(channels) * history
    return (
        sum(element.n if isinstance(element, Discrete) else math.prod(element.shape) for element in space.elements()),
    )


def input_refusal(space: Space) -> str | None:
    """Return the sentence that refuses a space which `ObservationEncoder` cannot handle; None if it can."""
    for element in space.elements():
        if isinstance(element, Discrete) and element.n > 10_000:
            return f"observations in {element} would need {element.n} inputs; at most 10000 are handled"
        if not isinstance(element, Box | Discrete | MultiBinary):
            return (
                f"observations in {element} are not handled; Box, Discrete, MultiBinary and Tuple or Dict of them are"
            )
    return None
