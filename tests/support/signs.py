"""Tasks whose reward depends only on the last step, with composite observations or actions."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import (
    Box,
    Dict,
    Discrete,
    Leaves,
    Mask,
    MultiBinary,
    MultiDiscrete,
    Space,
    StepResult,
    Tuple,
)

EPISODE = 4
SIDE = 16
CAMERA = Box(0, 255, shape=(SIDE, SIDE), dtype=np.uint8)

Numbers = npt.NDArray[np.int64]


class Signs:
    """N environments that show new random signs in each step.

    The signs determine the correct action. The reward is the fraction of the action that is correct. Actions do not
    affect later steps. Episodes have 4 steps and start at different times. Every second environment uses NEXT_STEP
    autoreset.
    """

    observation_space: Space
    action_space: Space
    signs: ClassVar[tuple[int, ...]]
    """Number of values of each sign."""

    def __init__(self, environments: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.environments = environments
        self._next_step = np.arange(environments) % 2 == 1
        self._void: Mask = np.zeros(environments, np.bool_)
        self._drawn: Numbers = np.zeros((environments, len(self.signs)), np.int64)
        self._time = np.zeros(environments, np.int64)

    def reset(self) -> Leaves:
        self._void = np.zeros(self.environments, np.bool_)
        self._time = self._rng.integers(0, EPISODE, self.environments)
        return self._draw()

    def step(self, actions: Leaves) -> StepResult:
        first = self._void
        rewards = np.where(first, 0.0, self.worth(actions[0], self._drawn))
        self._time += ~first
        ended = (self._time == EPISODE) & ~first
        self._time[ended] = 0
        self._void = ended & self._next_step
        seen = self._draw()
        return StepResult(rewards, seen, ended, np.zeros_like(ended), first, seen if ended.any() else None)

    def _draw(self) -> Leaves:
        self._drawn = self._rng.integers(0, self.signs, self._drawn.shape)
        return self.show(self._drawn)

    def show(self, drawn: Numbers) -> Leaves:
        """Return the observation of some signs [N, signs]."""
        raise NotImplementedError

    def worth(self, action: npt.NDArray[np.generic], drawn: Numbers) -> npt.NDArray[np.float64]:
        """Return the reward [N] of an action [N, ...]."""
        raise NotImplementedError


class CameraAndSpeed(Signs):
    """An image and numbers, with one sign each. The correct action tells whether the two signs differ.

    A bright spot is on the left or on the right of the image; one of the numbers is negative or positive. A policy that
    uses only one of them, or a sum of functions of each, is correct half of the time.
    """

    observation_space = Dict({"speed": Box(shape=(3,)), "camera": CAMERA, "room": Discrete(2, start=4)})
    action_space = Discrete(2, start=1)
    signs = (2, 2)

    def show(self, drawn: Numbers) -> Leaves:
        speed = self._rng.normal(size=(self.environments, 3)).astype(np.float32)
        speed[:, 1] = 2 * drawn[:, 1] - 1
        return [self.spots(drawn[:, 0]), self._rng.integers(4, 6, self.environments), speed]

    def spots(self, right: Numbers) -> npt.NDArray[np.uint8]:
        """Return dark images with a bright spot on the left, or on the right if `right`, uint8 [N, 16, 16]."""
        images = self._rng.integers(0, 30, (self.environments, *CAMERA.shape)).astype(np.uint8)
        rows, columns = self._rng.integers(0, (SIDE - 4, SIDE // 2 - 4), (self.environments, 2)).T
        for image, row, column in zip(images, rows, columns + SIDE // 2 * right, strict=True):
            image[row : row + 4, column : column + 4] += np.uint8(200)
        return images

    def worth(self, action: npt.NDArray[np.generic], drawn: Numbers) -> npt.NDArray[np.float64]:
        return 1.0 * (action - 1 == drawn[:, 0] ^ drawn[:, 1])


class CameraAndRoom(CameraAndSpeed):
    """The same task with a nested Tuple, and a bit in place of the numbers."""

    observation_space = Tuple([Tuple([Discrete(2), CAMERA])])

    def show(self, drawn: Numbers) -> Leaves:
        return [drawn[:, 1], self.spots(drawn[:, 0])]


class Levers(Signs):
    """Observations of numbers in a Tuple, and an action of two choices. Each correct choice has a reward of 1/2.

    The correct second choice is the sum of two of the signs modulo 3.
    """

    observation_space = Tuple([Discrete(3), Box(shape=(2,))])
    action_space = MultiDiscrete([2, 3])
    signs = (2, 3, 2)

    def show(self, drawn: Numbers) -> Leaves:
        return [drawn[:, 1], np.stack([2 * drawn[:, 0] - 1, 2 * drawn[:, 2] - 1], axis=1).astype(np.float32)]

    def worth(self, action: npt.NDArray[np.generic], drawn: Numbers) -> npt.NDArray[np.float64]:
        wanted = np.stack([drawn[:, 0], (drawn[:, 1] + drawn[:, 2]) % 3], axis=1)
        mean: npt.NDArray[np.float64] = (action == wanted).mean(axis=1)
        return mean


class Switches(Signs):
    """Observations of numbers in a Dict, and an action of bits. Each correct bit has a reward of 1/4."""

    observation_space = Dict({"numbers": Box(shape=(2,)), "bits": MultiBinary(2)})
    action_space = MultiBinary([2, 2])
    signs = (2, 2, 2, 2)

    def show(self, drawn: Numbers) -> Leaves:
        return [drawn[:, :2].astype(np.int8), (2 * drawn[:, 2:] - 1).astype(np.float32)]

    def worth(self, action: npt.NDArray[np.generic], drawn: Numbers) -> npt.NDArray[np.float64]:
        mean: npt.NDArray[np.float64] = (action.reshape(-1, 4) == drawn).mean(axis=1)
        return mean
