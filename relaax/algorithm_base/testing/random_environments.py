"""Random environments that end their episodes in all ways that the protocol allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.agent import Leaves, Mask, StepResult
from relaax.algorithm_base.testing.fake_parameters import ContractBroken
from relaax.rlx import Box, Discrete, ElementarySpace, MultiDiscrete, ProtocolError, Space
from relaax.rlx.action_masks import ACTION_MASK, choices_of, mask_leaf
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
    SAME_STEP mode. `idle_probability`: how often an environment is idle; if it is above 0, they are out of step (RLX,
    section 8). Actions that are not in the action space raise ContractBroken. `counted`: the number of transitions so
    far that are neither void nor held.

    A part `action_mask` of observations holds random masks with at least one valid action for each choice, or none
    where an environment is idle or an episode has ended in NEXT_STEP mode. Actions that are not valid raise
    ContractBroken.

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
        idle_probability: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._space = observation_space
        self._actions = LeavesCheck(action_space, environments, bounded=True)
        self._environments = environments
        self._next_step = np.broadcast_to(np.asarray(next_step, np.bool_), environments)
        self._end_probability, self._idle_probability = end_probability, idle_probability
        self._rng = np.random.default_rng(seed)
        self._none: Mask = _read_only(np.zeros(environments, np.bool_))
        self._away = self._unwanted = self._none
        self._mask = mask_leaf(ACTION_MASK, observation_space, action_space)
        self._choices = choices_of(action_space)
        self._choosing = {
            i: leaf for i, leaf in enumerate(action_space.elements()) if isinstance(leaf, Discrete | MultiDiscrete)
        }
        self._valid = self._draw_masks()
        self.counted = 0

    def reset(self) -> Leaves:
        """Start an episode in every environment that is not idle. Return the observations."""
        self._away = self._unwanted = self._draw_idle()
        return self._observe()

    def step(self, actions: Leaves) -> StepResult:
        """Return the outcome of the actions, leaves [N, ...]."""
        try:
            self._actions.check("action", actions)
        except ProtocolError as error:
            raise ContractBroken(error.message) from None
        if self._mask is not None:
            self._check_valid(actions)
        n, idle = self._environments, self._draw_idle()
        first = self._away & ~idle
        ended = (self._rng.random(n) < self._end_probability) & ~self._away
        truncated = ended & (self._rng.random(n) < 0.5)
        observations = self._observe()
        valid, others = self._valid, self._observe()
        self._valid = valid
        final = None
        if ended.any():
            final = [
                _read_only(np.where(_rows(self._next_step, a), a, b)) for a, b in zip(observations, others, strict=True)
            ]
        self._unwanted = unwanted = _read_only(idle | (ended & self._next_step))
        self._away = (self._away & idle) | (ended & unwanted)
        if self._mask is not None:
            self._valid[unwanted] = False
            mask = observations[self._mask]
            observations[self._mask] = _read_only(self._valid.astype(mask.dtype).reshape(mask.shape))
        marked = ended.any() or first.any()  # if nothing is marked, all masks are one array, as in a worker
        masks = [_read_only(mask) for mask in (ended & ~truncated, truncated, first)] if marked else [self._none] * 3
        rewards = _read_only(self._rng.normal(size=n))
        marks = unwanted if unwanted.any() else None
        step = StepResult(rewards, observations, masks[0], masks[1], masks[2], final, marks)
        self.counted += step.env_steps
        return step

    def _draw_idle(self) -> Mask:
        if not self._idle_probability:
            return self._none
        return _read_only(self._rng.random(self._environments) < self._idle_probability)

    def _observe(self) -> Leaves:
        leaves = sample(self._space, self._environments, self._rng)
        if self._mask is not None:
            self._valid, mask = self._draw_masks(), leaves[self._mask]
            leaves[self._mask] = self._valid.astype(mask.dtype).reshape(mask.shape)
        return [_read_only(leaf) for leaf in leaves]

    def _draw_masks(self) -> Mask:
        """Return random masks, bool [N, elements], with at least one valid action for each choice."""
        n = self._environments
        masks = [self._rng.random((n, count)) < 0.3 for count in self._choices if self._mask is not None]
        for mask in masks:
            mask[np.arange(n), self._rng.integers(0, mask.shape[1], n)] = True
        return np.concatenate(masks, axis=1) if masks else np.zeros((n, 0), np.bool_)

    def _check_valid(self, actions: Leaves) -> None:
        starts = [leaf.start if isinstance(leaf, Discrete) else 0 for leaf in self._choosing.values()]
        choices = [actions[i].reshape(self._environments, -1) for i in self._choosing]
        chosen = np.concatenate([each - start for each, start in zip(choices, starts, strict=True)], axis=1)
        wanted = np.flatnonzero(~self._unwanted)
        for k, first in enumerate(np.cumsum([0, *self._choices[:-1]])):
            for i in wanted:
                if not self._valid[i, first + chosen[i, k]]:
                    raise ContractBroken(f"action {chosen[i, k]} of choice {k} of environment {i} is not valid")


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the same array, made read-only."""
    array.setflags(write=False)
    return array


def _rows(mask: npt.NDArray[np.bool_], leaf: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return mask.reshape(-1, *[1] * (leaf.ndim - 1))
