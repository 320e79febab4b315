"""Normalize by running statistics that all workers share through the parameter server, images by their mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.agent import StepResult
from relaax.algorithm_base.network import IMAGE, OBSERVATION, RETURN, REWARD
from relaax.algorithm_base.policy_graph import LIMIT
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
        history = math.prod(inputs.shape[1:]) // self._size
        gathers = self._moments.count < FRAMES
        self._seen = inputs[..., history - 1 :: history].reshape(len(inputs), -1) if gathers else None

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

    def _use(self, moments: Moments) -> None:
        if moments.count != self._moments.count:
            self._moments, self._stacked = moments, None


INPUT_LIMIT = 1e6
"""Inputs that are not normalised are cut to plus and minus this: squares of float32 activations stay finite."""
_INPUT_LIMIT = np.float32(INPUT_LIMIT)


class Statistic:
    """The merged statistic of the last pull, with samples gathered since: `mean` and `std`, float64 [D] each."""

    def __init__(self, name: str, size: int, metrics: MetricsRecorder) -> None:
        self._name = name
        self._metrics = metrics
        self._use(Moments.zeros(size))

    def pulled(self, pulled: Pulled) -> None:
        """Go on from what was pulled."""
        self._use(pulled.statistics[self._name])

    def gather(self, samples: Array) -> None:
        """Samples [B, D], which are sent to the others with the next push."""
        if len(samples):
            moments = Moments.of(samples)
            self._metrics.statistic(self._name, moments)
            self._use(self._moments.merged(moments))

    def _use(self, moments: Moments) -> None:
        self._moments, self.mean = moments, moments.mean
        std = np.sqrt(moments.variance)
        self.std: Array = np.where(std > 1e-8, std, 1.0)  # what never varied has no unit


class Normalization:
    """What an agent over N environments does with its statistics: observations before rewards, step by step.

    An observation counts once it is known to have been acted on: the one that NEXT_STEP shows at an episode's end is
    not, and neither are final observations that come beside the next episode's first.
    """

    def __init__(
        self,
        statistics: Mapping[str, int],
        gamma: float,
        environments: int,
        metrics: MetricsRecorder,
        pixels: int = 0,
    ) -> None:
        """`statistics`: those of `normalized_statistics`; `gamma`: the discount of rewards.

        `pixels`: how many of the inputs are those of an image with numbers beside it (`NetworkSpec.pixels`).
        """
        self._gamma, self._pixels = gamma, pixels
        white = 1 if pixels else WHITE
        self._statistics = {name: Statistic(name, n, metrics) for name, n in statistics.items() if name != IMAGE}
        self._image = MeanImage(IMAGE, statistics[IMAGE], metrics, white) if IMAGE in statistics else None
        self._observation, self._reward, self._return = map(self._statistics.get, (OBSERVATION, REWARD, RETURN))
        self._seen: Array = np.zeros((environments, 0))
        self._returns = np.zeros(environments)  # discounted sums of the rewards since the episodes began

    def pulled(self, pulled: Pulled) -> None:
        """New statistics."""
        for statistic in self._statistics.values():
            statistic.pulled(pulled)
        if self._image:
            self._image.pulled(pulled)

    def reset(self) -> None:
        """Every environment starts an episode."""
        self._returns[:] = 0.0

    def see(self, inputs: Array) -> None:
        """Inputs [N, ...] that are acted on next, as they are before they are normalised."""
        if self._observation:
            self._seen = inputs[:, self._pixels :].astype(np.float64)  # a copy: the worker uses its buffers again
        if self._image:
            self._image.see(inputs[:, : self._pixels] if self._pixels else inputs)

    def gather(self, step: StepResult) -> None:
        """The outcome of those actions."""
        acted = ~step.first
        if self._image:
            self._image.gather(acted)
        if not self._statistics:
            return
        if self._observation:
            self._observation.gather(self._seen[acted])
        if self._reward:
            self._reward.gather(step.rewards[acted, None])
        if self._return:
            self._returns = self._gamma * self._returns + np.where(acted, step.rewards, 0.0)
            self._return.gather(self._returns[acted, None])
            self._returns[step.restart] = 0.0

    def observations(self, inputs: Array) -> Array:
        """Inputs [N, ...] as the network wants them; images are overwritten by the next call."""
        if self._pixels:
            image, numbers = inputs[:, : self._pixels], inputs[:, self._pixels :]
            return np.concatenate([self._of_image(image), self._of_numbers(numbers)], axis=1)
        return self._of_image(inputs) if self._image else self._of_numbers(inputs)

    def _of_image(self, inputs: Array) -> Array:
        return self._image.without(inputs) if self._image else inputs

    def _of_numbers(self, inputs: Array) -> Array:
        if not self._observation:
            return inputs if inputs.dtype == np.uint8 else np.minimum(np.maximum(inputs, -_INPUT_LIMIT), _INPUT_LIMIT)
        normalized = (inputs - self._observation.mean) / self._observation.std
        return np.clip(normalized, -LIMIT, LIMIT, out=normalized).astype(np.float32)

    def input_dtype(self, dtype: npt.DTypeLike) -> npt.DTypeLike:
        """Return the dtype of what `observations` makes of inputs of this one."""
        return np.float32 if self._image else dtype

    def mean_and_std(self, shape: tuple[int, ...]) -> tuple[Array, Array] | tuple[None, None]:
        """What `observations` uses for inputs of this shape, float64 each; None if it changes nothing.

        That of images is from 0 to 1.
        """
        if self._pixels and (self._image or self._observation):
            image, numbers = np.zeros(self._pixels), np.zeros(shape[0] - self._pixels)
            mean, std = (o.mean, o.std) if (o := self._observation) else (numbers, numbers + 1)
            whole = [self._image.stacked(image.shape) if self._image else image, mean]
            return np.concatenate(whole), np.concatenate([image + 1, std])
        if self._image:
            return self._image.stacked(shape), np.ones(1)
        return (self._observation.mean, self._observation.std) if self._observation else (None, None)

    @property
    def bounds_inputs(self) -> bool:
        """Whether `observations` bounds all numbers by their statistics."""
        return self._observation is not None

    @property
    def limit(self) -> float:
        """Plus and minus this is what `observations` cuts to: infinity if only images are normalised."""
        return LIMIT if self._observation else math.inf

    @property
    def reward_unit(self) -> float:
        """The standard deviation that `rewards` divides by; 1 if it does not scale."""
        return float(self._return.std[0]) if self._return else 1.0

    def rewards(self, step: StepResult) -> Array:
        """Rewards float64 [N] as they are learned, not to be written to. Those of void transitions are void."""
        statistic = self._reward or self._return
        if statistic is None:
            return step.rewards
        rewards = np.where(step.first, 0.0, step.rewards)
        if self._reward:
            rewards = rewards - statistic.mean
        scaled: Array = rewards / statistic.std
        return scaled
