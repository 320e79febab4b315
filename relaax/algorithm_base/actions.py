"""Policies for action spaces, and the conversion of their actions to leaves of the space."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.agent import Leaves
from relaax.algorithm_base.config import space_size
from relaax.algorithm_base.policy_graph import (
    GreedyAction,
    LargestOutput,
    LargestOutputs,
    PositiveOutputs,
    ScaledOutput,
)
from relaax.nn.distributions import Bernoulli, Categorical, Distribution, Gaussian, MultiCategorical
from relaax.rlx import Box, Discrete, MultiBinary, MultiDiscrete, Space

HEAD = "policy"
"""The network's head of a `DiscreteActions`."""


class DiscreteActions:
    """Independent choices or bits: the policy and actions of a Discrete, MultiDiscrete or MultiBinary space."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._start = space.start if isinstance(space, Discrete) else 0
        self.policy: Distribution
        if isinstance(space, MultiDiscrete):
            self.policy = MultiCategorical(space.nvec)
        else:
            self.policy = (Bernoulli if isinstance(space, MultiBinary) else Categorical)(space_size(space))

    def __call__(self, actions: npt.NDArray[Any]) -> Leaves:
        """Return the policy's actions [N, ...] as leaves of the space, of the actions' dtype."""
        if isinstance(self._space, MultiBinary):
            return [actions.reshape(-1, *self._space.shape)]
        return [actions if isinstance(self._space, MultiDiscrete) else actions + self._start]

    def greedy(self) -> GreedyAction:
        """Return how to compute the most probable action from the outputs, as data."""
        if isinstance(self._space, MultiDiscrete):
            return LargestOutputs(HEAD, self._space.nvec)
        if isinstance(self._space, MultiBinary):
            return PositiveOutputs(HEAD, self._space.shape)
        return LargestOutput(HEAD, self._start)


def discrete_refusal(space: Space) -> str | None:
    """Return the end of a sentence that refuses `space`, or None if `DiscreteActions` supports it."""
    if isinstance(space, Discrete | MultiDiscrete | MultiBinary):
        return None
    handled = "it handles Discrete, MultiDiscrete and MultiBinary"
    return handled + ("; da3c_cont handles real numbers" if _is_real(space) else "")


LARGEST_BOUND = 1e6
"""Bounds of at least this size count as unbounded: spaces often give ±3.4e38, the largest float32."""


class RealActions:
    """Normally distributed actions u, float32 [N, D], for a Box of real numbers, or a Tuple or Dict of such Boxes.

    If a dimension is bounded on both sides, below `LARGEST_BOUND`, u from -1 to 1 spans it. In other dimensions u is
    added to the number within the bounds that is nearest to 0. The result is clipped to the bounds. Clipping is part of
    the environment: the policy samples u and computes the likelihood of u before clipping, so the policy gradient is
    unbiased.
    """

    def __init__(self, space: Space, *, spherical: bool = False) -> None:
        """Make the policy. `spherical`: one variance for all dimensions."""
        self.policy = Gaussian(space_size(space), spherical=spherical)
        self._boxes = [box for box in space.elements() if isinstance(box, Box)]
        self._low = np.concatenate([box.low.reshape(-1) for box in self._boxes])
        self._high = np.concatenate([box.high.reshape(-1) for box in self._boxes])
        bounded = np.maximum(np.abs(self._low), np.abs(self._high)) < LARGEST_BOUND
        low, high = (np.where(bounded, bound, 0.0) / 2 for bound in (self._low, self._high))
        nearest = np.clip(0.0, self._low, self._high)
        self._centre = np.where(bounded, low + high, nearest)
        self._radius = np.where(bounded, high - low, 1.0)

    def unused_bounds(self) -> str | None:
        """Return a warning about the first finite bound that counts as unbounded, or None."""
        for index, bounds in enumerate(zip(self._low.tolist(), self._high.tolist(), strict=True)):
            for bound in bounds:
                if LARGEST_BOUND <= abs(bound) < np.inf:
                    return (
                        f"the bound {bound:g} of action element {index} is not below {LARGEST_BOUND:,.0f}; the element "
                        "counts as unbounded and its first actions are near 0; if the bound is real, scale the action "
                        "space"
                    )
        return None

    def __call__(self, actions: npt.NDArray[Any]) -> Leaves:
        """Return leaves [N, ...] of the space."""
        mapped = self._centre + self._radius * actions
        np.maximum(mapped, self._low, out=mapped)
        np.minimum(mapped, self._high, out=mapped)
        leaves, start = [], 0
        for box in self._boxes:
            end = start + math.prod(box.shape)
            leaves.append(mapped[:, start:end].reshape(-1, *box.shape).astype(box.dtype))
            start = end
        return leaves

    def greedy(self) -> ScaledOutput:
        """Return how to compute the action from the policy's means, as data."""
        return ScaledOutput("mean", self._centre, self._radius, self._low, self._high)


def real_refusal(space: Space) -> str | None:
    """Return the end of a sentence that refuses `space`, or None if `RealActions` supports it."""
    if _is_real(space):
        return None
    discrete = isinstance(space, Discrete | MultiDiscrete | MultiBinary)
    handled = "it handles Box of real numbers, and Tuple or Dict of them"
    return handled + ("; da3c handles Discrete, MultiDiscrete and MultiBinary" if discrete else "")


def _is_real(space: Space) -> bool:
    return all(isinstance(box, Box) and box.dtype.kind == "f" for box in space.elements())
