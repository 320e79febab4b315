"""Normalisation by running statistics that all workers share through the parameter server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.acting.policy_graph import LIMIT
from relaax.algorithm_base.agent import StepResult
from relaax.algorithm_base.network import IMAGE, OBSERVATION, RETURN, REWARD
from relaax.parameters.interfaces import MetricsRecorder, Pulled
from relaax.parameters.moments import Moments

Array = npt.NDArray[Any]

MEAN_IMAGE_FRAMES = 20_000
"""Number of frames in the mean image, over all workers. Later frames do not change it."""
MAX_PIXEL = 255


class MeanImage:
    """The mean of the first frames of all workers, as the statistic `name`.

    Without it, a bright, even background dominates the input of each filter. The background is the same in all
    examples, so an update for a few examples changes the outputs for all of them, and units leave the active range of
    their activation. With the mean image subtracted (Krizhevsky et al. 2012), the background is 0, and only
    moving objects remain.
    """

    def __init__(self, name: str, size: int, metrics: MetricsRecorder, max_pixel: int = MAX_PIXEL) -> None:
        """`size`: number of values in one frame; `max_pixel`: the largest pixel value, 255 for bytes."""
        self._name, self._size, self._metrics, self._max_pixel = name, size, metrics, max_pixel
        self._moments = Moments.zeros(size)
        self._repeated: npt.NDArray[np.float32] | None = None
        self._inputs: Array | None = None
        self._memory: npt.NDArray[np.float32] = np.empty(0, np.float32)

    def set_statistics(self, pulled: Pulled) -> None:
        """Use the statistic of `pulled`."""
        self._use(pulled.statistics[self._name])

    def set_inputs(self, inputs: Array) -> None:
        """Set the frames that the next actions are for: stacks 0..max_pixel, [N, H, W, C x history] or flat."""
        history = math.prod(inputs.shape[1:]) // self._size
        is_incomplete = self._moments.count < MEAN_IMAGE_FRAMES
        self._inputs = inputs[..., history - 1 :: history].reshape(len(inputs), -1) if is_incomplete else None

    def add_samples(self, acted: Array) -> None:
        """Add the current frames of the rows where `acted` (bool [N]) is true."""
        if self._inputs is not None and acted.any():
            moments = Moments.of(self._inputs[acted].astype(np.float64))
            self._metrics.statistic(self._name, moments)
            self._use(self._moments.merged(moments))
            self._inputs = None

    def subtract_from(self, inputs: Array) -> npt.NDArray[np.float32]:
        """Return stacks of frames minus the mean image, float32 from -1 to 1.

        The stacks are 0..max_pixel, [N, H, W, C x history] or flat. The next call overwrites the result: allocating
        memory would take several times as long as the computation.
        """
        mean = self.in_pixels(inputs.shape[1:])
        if self._memory.shape != inputs.shape:
            self._memory = np.empty(inputs.shape, np.float32)
        images = self._memory
        images[...] = inputs
        images -= mean
        images *= np.float32(1 / self._max_pixel)
        return images

    def in_pixels(self, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Return the mean image, repeated for each stacked frame, 0..max_pixel, float32 [H, W, C x history].

        The result is another array only if the mean image has changed.
        """
        if self._repeated is None:
            self._repeated = (self._max_pixel * self.repeated(shape)).astype(np.float32)
        return self._repeated

    def repeated(self, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Return the mean image, repeated for each stacked frame, from 0 to 1, float64 [H, W, C x history]."""
        history = math.prod(shape) // self._size
        return np.repeat(self._moments.mean / self._max_pixel, history).reshape(shape)

    def _use(self, moments: Moments) -> None:
        if moments.count != self._moments.count:
            self._moments, self._repeated = moments, None


INPUT_LIMIT = 1e6
"""Bound of inputs that are not normalised. It keeps squares of float32 activations finite."""
_INPUT_LIMIT = np.float32(INPUT_LIMIT)


class Statistic:
    """The merged statistic of the last pull plus the samples since then: `mean` and `std`, float64 [D] each."""

    def __init__(self, name: str, size: int, metrics: MetricsRecorder) -> None:
        self._name = name
        self._metrics = metrics
        self._use(Moments.zeros(size))

    def set_statistics(self, pulled: Pulled) -> None:
        """Use the statistic of `pulled`."""
        self._use(pulled.statistics[self._name])

    def add_samples(self, samples: Array) -> None:
        """Add samples [B, D]. The next push sends them to the parameter server."""
        if len(samples):
            moments = Moments.of(samples)
            self._metrics.statistic(self._name, moments)
            self._use(self._moments.merged(moments))

    def _use(self, moments: Moments) -> None:
        self._moments, self.mean = moments, moments.mean
        std = np.sqrt(moments.variance)
        self.std: Array = np.where(std > 1e-8, std, 1.0)  # constant numbers are not scaled


class Normalization:
    """The statistics of an agent over N environments, and the normalisation of its inputs and rewards.

    In each step call `set_inputs`, then `add_outcome`, then `rewards`. An observation is added to the statistics only
    if an action for it was executed. Final observations are therefore not added, in either autoreset mode.
    """

    def __init__(
        self,
        statistics: Mapping[str, int],
        gamma: float,
        environments: int,
        metrics: MetricsRecorder,
        pixels: int = 0,
        in_network: bool = False,
    ) -> None:
        """`statistics`: the result of `normalized_statistics`; `gamma`: the discount of rewards.

        `pixels`: number of inputs that are pixels, if an image is combined with numbers (`NetworkSpec.pixels`).
        `in_network`: the network subtracts the mean image from images of bytes (`mean_image`), which is faster.
        """
        self._gamma, self._pixels = gamma, pixels
        self._in_network = in_network and not pixels
        max_pixel = 1 if pixels else MAX_PIXEL
        self._statistics = {name: Statistic(name, n, metrics) for name, n in statistics.items() if name != IMAGE}
        self._image = MeanImage(IMAGE, statistics[IMAGE], metrics, max_pixel) if IMAGE in statistics else None
        self._observation, self._reward, self._return = map(self._statistics.get, (OBSERVATION, REWARD, RETURN))
        self._inputs: Array = np.zeros((environments, 0))
        self._returns = np.zeros(environments)  # discounted sums of rewards since the start of each episode

    def set_statistics(self, pulled: Pulled) -> None:
        """Use the statistics of `pulled`."""
        for statistic in self._statistics.values():
            statistic.set_statistics(pulled)
        if self._image:
            self._image.set_statistics(pulled)

    def reset(self) -> None:
        """Start an episode in every environment."""
        self._returns[:] = 0.0

    def set_inputs(self, inputs: Array) -> None:
        """Set the inputs [N, ...], not normalised, that the next actions are for."""
        if self._observation:
            self._inputs = inputs[:, self._pixels :].astype(np.float64)  # a copy: the worker reuses its buffers
        if self._image:
            self._image.set_inputs(inputs[:, : self._pixels] if self._pixels else inputs)

    def add_outcome(self, step: StepResult) -> None:
        """Add the last inputs and the rewards of `step` to the statistics, without void transitions and held rows."""
        acted = step.acted
        if self._image:
            self._image.add_samples(acted)
        if not self._statistics:
            return
        if self._observation:
            self._observation.add_samples(self._inputs[acted])
        if self._reward:
            self._reward.add_samples(step.rewards[acted, None])
        if self._return:
            returns = self._gamma * self._returns + np.where(acted, step.rewards, 0.0)
            self._returns = returns if step.held is None else np.where(step.held, self._returns, returns)
            self._return.add_samples(self._returns[acted, None])
            self._returns[step.restart] = 0.0

    def observations(self, inputs: Array) -> Array:
        """Return the normalised inputs [N, ...]. The next call overwrites the array of images."""
        if self._pixels:
            image, numbers = inputs[:, : self._pixels], inputs[:, self._pixels :]
            return np.concatenate([self._normalize_image(image), self._normalize_numbers(numbers)], axis=1)
        return self._normalize_image(inputs) if self._image else self._normalize_numbers(inputs)

    def _normalize_image(self, inputs: Array) -> Array:
        return self._image.subtract_from(inputs) if self._image and not self._in_network else inputs

    def _normalize_numbers(self, inputs: Array) -> Array:
        if not self._observation:
            return inputs if inputs.dtype == np.uint8 else np.minimum(np.maximum(inputs, -_INPUT_LIMIT), _INPUT_LIMIT)
        normalized = (inputs - self._observation.mean) / self._observation.std
        return np.clip(normalized, -LIMIT, LIMIT, out=normalized).astype(np.float32)

    def input_dtype(self, dtype: npt.DTypeLike) -> npt.DTypeLike:
        """Return the dtype that `observations` returns for inputs of `dtype`."""
        return np.float32 if self._image and not self._in_network else dtype

    def mean_image(self, shape: tuple[int, ...]) -> npt.NDArray[np.float32] | None:
        """Return what the network subtracts from inputs of this shape, float32, 0..255; None to subtract nothing."""
        return self._image.in_pixels(shape) if self._image and self._in_network else None

    def mean_and_std(self, shape: tuple[int, ...]) -> tuple[Array, Array] | tuple[None, None]:
        """Return mean and standard deviation for inputs of this shape, float64 each; None without normalisation.

        In a mean image, pixels are from 0 to 1.
        """
        if self._pixels and (self._image or self._observation):
            image, numbers = np.zeros(self._pixels), np.zeros(shape[0] - self._pixels)
            mean, std = (o.mean, o.std) if (o := self._observation) else (numbers, numbers + 1)
            whole = [self._image.repeated(image.shape) if self._image else image, mean]
            return np.concatenate(whole), np.concatenate([image + 1, std])
        if self._image:
            return self._image.repeated(shape), np.ones(1)
        return (self._observation.mean, self._observation.std) if self._observation else (None, None)

    @property
    def bounds_inputs(self) -> bool:
        """Whether `observations` normalises numbers and so bounds them by `limit`."""
        return self._observation is not None

    @property
    def limit(self) -> float:
        """Bound to which `observations` clips normalised numbers; infinity if only images are normalised."""
        return LIMIT if self._observation else math.inf

    @property
    def reward_unit(self) -> float:
        """Standard deviation of the return, by which `rewards` divides; 1 without this scaling."""
        return float(self._return.std[0]) if self._return else 1.0

    def rewards(self, step: StepResult) -> Array:
        """Return the normalised rewards, float64 [N], read-only. Rewards of void transitions have no meaning."""
        statistic = self._reward or self._return
        if statistic is None:
            return step.rewards
        rewards = np.where(step.acted, step.rewards, 0.0)
        if self._reward:
            rewards = rewards - statistic.mean
        scaled: Array = rewards / statistic.std
        return scaled
