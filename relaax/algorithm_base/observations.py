"""Conversion of observation leaves to network inputs, with frame stacks for images."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.agent import Leaves, Mask
from relaax.algorithm_base.network import input_shape, is_image, looks_like_image, one_hot_sizes
from relaax.rlx import Discrete, Space

Inputs = npt.NDArray[Any]

_LARGEST = np.finfo(np.float32).max


class ObservationEncoder:
    """Network inputs for the N environments of a connection, with the frame history that images need.

    An image is one Box of uint8 with shape [H, W] or [H, W, C], or of bool with shape [H, W, C]. It becomes uint8
    [N, H, W, C x history]; True becomes 255. Other spaces become float32 [N, D]: numbers in C order, a Discrete as
    one-hot, the parts of a Tuple or Dict concatenated. Parts of bytes that look like an image are scaled from 0..255 to
    0..1.

    `image`: index of the part of a Tuple or Dict that is an image with frames to stack (see `image_part`). The first
    numbers are then its pixels, from 0 to 1, in the order of [H, W, C x history].
    """

    def __init__(self, space: Space, environments: int, history: int, image: int | None = None) -> None:
        self._elements = list(space.elements())
        self._one_hot = [one_hot_sizes(element) for element in self._elements]
        self._byte_images = [looks_like_image(e) and e.dtype == np.uint8 for e in self._elements]
        self._is_image = is_image(space)
        self._image = 0 if self._is_image else image
        self._history = None
        if self._image is not None:
            self._history = FrameStack(environments, self._elements[self._image].shape, np.uint8, history)
        self.history = history
        self.shape = input_shape(space, history, image)

    @property
    def dtype(self) -> npt.DTypeLike:
        """uint8 for images alone, else float32."""
        return np.uint8 if self._is_image else np.float32

    def reset(self, observations: Leaves) -> Inputs:
        """Return the inputs if every environment starts an episode."""
        if self._history is None:
            return self._vector(observations)
        return self._with_stack(self._history.reset(self._frames(observations)), observations)

    def push(self, observations: Leaves, restart: Mask, void: Mask | None = None) -> Inputs:
        """Return the inputs after a step. Where `restart` [N] is true, the observation starts an episode.

        Where `void` [N] is true, the observation has no meaning, and the frame stack does not change.
        """
        if self._history is None:
            return self._vector(observations)
        return self._with_stack(self._history.push(self._frames(observations), restart, void), observations)

    def peek(self, observations: Leaves) -> Inputs:
        """Return the inputs for final observations, with the frames of their episodes. The history does not change."""
        if self._history is None:
            return self._vector(observations)
        return self._with_stack(self._history.peek(self._frames(observations)), observations)

    def _frames(self, observations: Leaves) -> Inputs:
        assert self._image is not None, "only an image has frames"
        return _pixels(observations[self._image])

    def _with_stack(self, stack: Inputs, observations: Leaves) -> Inputs:
        if self._is_image:
            return stack.reshape(len(stack), *self.shape)
        inputs = np.empty((len(stack), *self.shape), np.float32)
        pixels = stack.reshape(len(stack), -1)
        count = pixels.shape[1]
        np.divide(pixels, np.float32(255), out=inputs[:, :count])
        if count < inputs.shape[1]:
            inputs[:, count:] = self._vector(observations)
        return inputs

    def _vector(self, observations: Leaves) -> Inputs:
        """Return all parts except the image with a history, concatenated."""
        parts = []
        for index, (leaf, sizes, byte_image) in enumerate(
            zip(observations, self._one_hot, self._byte_images, strict=True)
        ):
            if index == self._image:
                continue
            if sizes:
                # No indexing: in rows where no episode ended, final observations may be out of range.
                element = self._elements[index]
                start = element.start if isinstance(element, Discrete) else 0
                choices = leaf.reshape(len(leaf), -1) - start
                columns = [choices[:, [i]] == np.arange(size) for i, size in enumerate(sizes)]
                parts.append(np.concatenate(columns, axis=1, dtype=np.float32))
            elif byte_image:
                parts.append(leaf.reshape(len(leaf), -1) / np.float32(255))
            else:
                if leaf.dtype == np.float64:  # values outside the range of float32 would become infinite
                    leaf = np.clip(leaf, -_LARGEST, _LARGEST)
                parts.append(leaf.reshape(len(leaf), -1).astype(np.float32, copy=False))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _pixels(leaf: npt.NDArray[Any]) -> Inputs:
    """Return uint8 [N, H, W, ...] for pixels of uint8 or bool."""
    return leaf * np.uint8(255) if leaf.dtype == np.bool_ else leaf


Frames = npt.NDArray[Any]


class FrameStack:
    """The last `length` frames of N environments, newest last: shape [N, *frame, length] (Mnih et al. 2015).

    At an episode's start the stack is filled with the first frame, which removes the previous episode.
    """

    def __init__(self, environments: int, frame_shape: tuple[int, ...], dtype: Any, length: int) -> None:
        self._stack: Frames = np.zeros((environments, *frame_shape, length), dtype)
        # A stack of 2, 4 or 8 bytes is one little-endian integer: shifting it moves all frames at once.
        packable = self._stack.dtype == np.uint8 and length in (2, 4, 8) and np.little_endian
        self._packed = self._stack.view(f"<u{length}")[..., 0] if packable else None
        self._length = length

    @property
    def frames(self) -> Frames:
        """The stacks [N, *frame, length]. The next call overwrites them: make a copy to keep them."""
        return self._stack

    def reset(self, frames: Frames) -> Frames:
        """Start an episode in every environment with `frames` [N, *frame]. Return the stacks."""
        self._stack[...] = frames[..., None]
        return self._stack

    def push(self, frames: Frames, restart: Mask, void: Mask | None = None) -> Frames:
        """Append `frames` [N, *frame] and return the stacks. Where `restart` [N] is true, a frame starts an episode.

        Where `void` [N] is true, the stack does not change.
        """
        kept = None if void is None else self._stack[void]
        self._shift(self._stack, self._packed, frames)
        if restart.any():
            self._stack[restart] = frames[restart][..., None]
        if kept is not None:
            self._stack[void] = kept
        return self._stack

    def peek(self, frames: Frames) -> Frames:
        """Return the stacks with `frames` appended, without changing the state: for final observations."""
        stack: Frames = self._stack.copy()
        packed = None if self._packed is None else stack.view(self._packed.dtype)[..., 0]
        self._shift(stack, packed, frames)
        return stack

    def _shift(self, stack: Frames, packed: Frames | None, frames: Frames) -> None:
        if packed is not None:
            np.right_shift(packed, packed.dtype.type(8), out=packed)
        else:
            stack[..., :-1] = stack[..., 1:].copy()
        stack[..., -1] = frames
