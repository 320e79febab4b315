"""Give a network images without their mean, so that what never changes says nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.parameters.interfaces import MetricsRecorder, Pulled
from relaax.parameters.moments import Moments

Array = npt.NDArray[Any]

FRAMES = 20_000
"""Frames of which the mean image is made, over all workers; then it stays as it is."""
WHITE = 255


class MeanImage:
    """The mean of the first frames that all workers have seen, a statistic of the name `name`.

    A bright, even background is most of what a filter takes in. It is the same in each example, so an update that is
    meant for a few of them moves the outputs for all, and units leave the reach of their activation. Without the mean
    image (Krizhevsky et al. 2012) a background is black, and a network sees what moves.
    """

    def __init__(self, name: str, size: int, metrics: MetricsRecorder, white: int = WHITE) -> None:
        """`size`: numbers of one frame; `white`: the largest of them, 255 for bytes."""
        self._name, self._size, self._metrics, self._white = name, size, metrics, white
        self._moments = Moments.zeros(size)
        self._stacked: Array | None = None
        self._seen: Array | None = None
        self._memory: npt.NDArray[np.float32] = np.empty(0, np.float32)

    def pulled(self, pulled: Pulled) -> None:
        """Go on from what was pulled."""
        self._use(pulled.statistics[self._name])

    def see(self, inputs: Array) -> None:
        """Stacks of frames, 0..white [N, H, W, C x history] or flat, are acted on next."""
        history = self._history(inputs)
        self._seen = inputs[..., history - 1 :: history].reshape(len(inputs), -1) if self._gathers else None

    def gather(self, acted: Array) -> None:
        """They were, where `acted`, bool [N]."""
        if self._seen is not None and acted.any():
            moments = Moments.of(self._seen[acted].astype(np.float64))
            self._metrics.statistic(self._name, moments)
            self._use(self._moments.merged(moments))
            self._seen = None

    def without(self, inputs: Array) -> npt.NDArray[np.float32]:
        """Return stacks of frames, 0..white [N, H, W, C x history] or flat, less the mean image, float32 from -1 to 1.

        They are overwritten by the next call: new memory would cost several times what this computes.
        """
        if self._stacked is None:
            self._stacked = (self._white * self.stacked(inputs.shape[1:])).astype(np.float32)
        if self._memory.shape != inputs.shape:
            self._memory = np.empty(inputs.shape, np.float32)
        images = self._memory
        images[...] = inputs
        images -= self._stacked
        images *= np.float32(1 / self._white)
        return images

    def stacked(self, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Return the mean image as often as frames are stacked, from 0 to 1, float64 [H, W, C x history]."""
        history = math.prod(shape) // self._size
        return np.repeat(self._moments.mean / self._white, history).reshape(shape)

    @property
    def _gathers(self) -> bool:
        return self._moments.count < FRAMES

    def _history(self, inputs: Array) -> int:
        return math.prod(inputs.shape[1:]) // self._size

    def _use(self, moments: Moments) -> None:
        if moments.count != self._moments.count:
            self._moments, self._stacked = moments, None
