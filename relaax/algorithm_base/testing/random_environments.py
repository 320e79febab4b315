"""Random environments that end their episodes in all ways that the protocol allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.agent import Leaves, Mask, StepResult
from relaax.algorithm_base.testing.fake_parameters import ContractBroken
from relaax.rlx import Box, Discrete, ElementarySpace, MultiDiscrete, ProtocolError, Space
from relaax.rlx.leaf_checks import LeavesCheck


def sample(space: Space, environments: int, rng: np.random.Generator) -> Leaves:
    """Return random values of a space: leaves [N, ...], near zero if the space has no bounds."""
    return [_sample(element, (environments, *element.shape), rng) for element in space.elements()]


def _sample(element: ElementarySpace, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    if isinstance(element, Discrete):
        return rng.integers(0, element.n, shape) + element.start
    if isinstance(element, MultiDiscrete):
        return rng.integers(0, element.nvec, shape)
    if not isinstance(element, Box):
        return rng.integers(0, 2, shape).astype(element.dtype)
    centre, whole = np.clip(0.0, element.low, element.high), element.dtype.kind != "f"
    low = np.maximum(element.low, centre - (128 if whole else 1))
    high = np.minimum(element.high, centre + (255 if whole else 1))
    values = low + rng.random(shape) * (high - low + whole)
    sampled: npt.NDArray[Any] = np.minimum(np.floor(values) if whole else values, high).astype(element.dtype)
    return sampled


class RandomEnvironments:
    """N environments with random observations, rewards and ends of episodes, determined by the seed.

    `next_step`: whether episodes end in gymnasium's NEXT_STEP mode, for all environments or for each; if false, in
    SAME_STEP mode. Actions that are not in the action space raise ContractBroken. `counted`: the number of transitions
    so far that are not void.

    Observations and rewards do not depend on the actions, so two agents get the same ones. Arrays are read-only, like
    received ones.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        environments: int,
        *,
        next_step: bool | Sequence[bool] = False,
        end_probability: float = 0.2,
        seed: int = 0,
    ) -> None:
        self._space = observation_space
        self._actions = LeavesCheck(action_space, environments, bounded=True)
        self._environments = environments
        self._next_step = np.broadcast_to(np.asarray(next_step, np.bool_), environments)
        self._end_probability = end_probability
        self._rng = np.random.default_rng(seed)
        self._none: Mask = _read_only(np.zeros(environments, np.bool_))
        self._starting = self._none
        self.counted = 0

    def reset(self) -> Leaves:
        """Start an episode in every environment. Return the observations."""
        self._starting = self._none
        return self._observe()

    def step(self, actions: Leaves) -> StepResult:
        """Return the outcome of the actions, leaves [N, ...]."""
        try:
            self._actions.check("action", actions)
        except ProtocolError as error:
            raise ContractBroken(error.message) from None
        n, first = self._environments, self._starting
        ended = (self._rng.random(n) < self._end_probability) & ~first
        truncated = ended & (self._rng.random(n) < 0.5)
        observations, others = self._observe(), self._observe()
        final = None
        if ended.any():
            final = [
                _read_only(np.where(_rows(self._next_step, a), a, b)) for a, b in zip(observations, others, strict=True)
            ]
        self._starting = ended & self._next_step
        marked = ended.any() or first.any()  # if nothing is marked, all masks are one array, as in a worker
        masks = [_read_only(mask) for mask in (ended & ~truncated, truncated, first)] if marked else [self._none] * 3
        rewards = _read_only(self._rng.normal(size=n))
        step = StepResult(rewards, observations, masks[0], masks[1], masks[2], final)
        self.counted += step.env_steps
        return step

    def _observe(self) -> Leaves:
        return [_read_only(leaf) for leaf in sample(self._space, self._environments, self._rng)]


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the same array, made read-only."""
    array.setflags(write=False)
    return array


def _rows(mask: npt.NDArray[np.bool_], leaf: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return mask.reshape(-1, *[1] * (leaf.ndim - 1))
