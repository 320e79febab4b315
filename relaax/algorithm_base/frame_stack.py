"""Stack the last frames of each environment: the client sends only the newest."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.step import Mask

Frames = npt.NDArray[Any]


class FrameStack:
    """The last `length` frames of N environments, newest last: shape [N, *frame, length] (Mnih et al. 2015).

    At an episode's start the stack is filled with its first frame, so that nothing of the episode before remains.
    """

    def __init__(self, environments: int, frame_shape: tuple[int, ...], dtype: Any, length: int) -> None:
        self._stack: Frames = np.zeros((environments, *frame_shape, length), dtype)
        # A stack of 2, 4 or 8 bytes is one little-endian integer: shifting it moves all frames at once.
        packable = self._stack.dtype == np.uint8 and length in (2, 4, 8) and np.little_endian
        self._packed = self._stack.view(f"<u{length}")[..., 0] if packable else None
        self._length = length

    @property
    def frames(self) -> Frames:
        """[N, *frame, length]. Overwritten by the next call: copy what is to be kept."""
        return self._stack

    def reset(self, frames: Frames) -> Frames:
        """Every environment starts an episode with `frames` [N, *frame]."""
        self._stack[...] = frames[..., None]
        return self._stack

    def push(self, frames: Frames, restart: Mask) -> Frames:
        """Append `frames` [N, *frame]; where `restart` [N], they start an episode."""
        self._shift(self._stack, self._packed, frames)
        if restart.any():
            self._stack[restart] = frames[restart][..., None]
        return self._stack

    def peek(self, frames: Frames) -> Frames:
        """Return what `push(frames)` would give if nothing restarts, leaving the stack as it is: for the value of an
        episode's final observation.
        """
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
