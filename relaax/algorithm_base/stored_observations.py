"""How a network's inputs are kept in replay memory: images as single frames, each once, anything else as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.frame_stack import FrameStack
from relaax.algorithm_base.network import history
from relaax.algorithm_base.observations import image_of, input_shape, is_image
from relaax.algorithm_base.step import Mask
from relaax.replay.spec import Field
from relaax.rlx import Space

if TYPE_CHECKING:
    from relaax.replay.spec import Frames

Inputs = npt.NDArray[Any]
Stored = npt.NDArray[Any]


class ObservationLayout:
    """What an `ObservationEncoder` makes of a space, as a field of a table.

    A stack of H frames of [h, w, c] is kept as one of frames [h, w * c, 1]: so its bytes are in the encoder's order,
    in which the frames come last. An image with numbers beside it (`image`: as for `ObservationEncoder`) is kept as
    numbers, with each of its stacks.
    """

    def __init__(self, space: Space, history_len: int | None, image: int | None = None) -> None:
        frames = history(history_len, image_of(space, image))
        self.frames = frames if is_image(space) else 0
        self.inputs = input_shape(space, frames, image)
        self.dtype: npt.DTypeLike = np.uint8 if self.frames else np.float32

    @property
    def field(self) -> Field:
        """The field of an observation."""
        if self.frame is None:
            return Field("float32", self.inputs)
        return Field("uint8", (*self.frame[:2], self.frames), frames=self.frames)

    @property
    def frame(self) -> tuple[int, int, int] | None:
        """The shape of a single frame; None if observations are no images."""
        if not self.frames:
            return None
        height, width, channels = self.inputs
        return height, width * channels // self.frames, 1

    def of(self, column: Inputs) -> Inputs:
        """Return the network's inputs [B, *inputs], bit for bit as they were acted on, of what was sampled."""
        return column.reshape(len(column), *self.inputs)

    def memory(self, environments: int) -> KeptFrames | KeptVectors:
        """Return what keeps the observations of so many environments until they are sent."""
        return KeptFrames(environments, self.frames) if self.frames else KeptVectors()


class KeptVectors:
    """Observations float32 [E, D], which are sent with each transition as they are."""

    def push(self, inputs: Inputs, restart: Mask) -> Stored:
        """Return what stands for what is seen next, [E, ...]."""
        copy: Stored = inputs.copy()
        return copy

    def peek(self, inputs: Inputs, where: Mask) -> Stored:
        """Return what stands for what was seen last of the episodes `where` they were cut off, [E, ...]."""
        copy: Stored = inputs.copy()
        return copy

    def since_first_of(self, *stored: Stored) -> tuple[Frames | None, int]:
        """Return the frames from the first one on that some of these name, and its number; forget those before."""
        return None, 0

    def clear(self) -> None:
        """Forget everything: nothing of it will be named."""


class KeptFrames(KeptVectors):
    """Single frames of E environments, numbered as they come; stacks of them int64 [E, H] stand for observations.

    At an episode's start the stack repeats the first frame, as `FrameStack` does.
    """

    def __init__(self, environments: int, length: int) -> None:
        self._stack = FrameStack(environments, (), np.int64, length)
        self._environments, self._length = environments, length
        self._kept: list[Frames] = []
        self._first = self._following = 0

    def push(self, inputs: Inputs, restart: Mask) -> Stored:
        stack: Stored = self._stack.push(self._keep(inputs), restart).copy()
        return stack

    def peek(self, inputs: Inputs, where: Mask) -> Stored:
        newest = np.zeros(self._environments, np.int64)
        newest[where] = self._keep(inputs[where])
        return self._stack.peek(newest)

    def since_first_of(self, *stored: Stored) -> tuple[Frames | None, int]:
        first = min(int(numbers.min()) for numbers in stored if numbers.size)
        self._kept, self._first = [np.concatenate(self._kept)[first - self._first :]], first
        return self._kept[0], first

    def clear(self) -> None:
        self._kept, self._first = [], self._following

    def _keep(self, inputs: Inputs) -> npt.NDArray[np.int64]:
        """Keep the newest frame of each of n stacks; return their numbers, int64 [n]."""
        self._kept.append(inputs.reshape(*inputs.shape[:2], -1, self._length)[..., -1:].copy())
        numbers = np.arange(self._following, self._following + len(inputs))
        self._following += len(inputs)
        return numbers
