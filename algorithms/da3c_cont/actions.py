"""The policy's actions, and those of a bounded space."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import Box, Discrete, Leaves, MultiBinary, MultiDiscrete, Space
from relaax.algorithm_base.config import space_size
from relaax.algorithm_base.policy_graph import ScaledOutput
from relaax.nn.distributions import Gaussian

from .config import Config


def gaussian(config: Config, action_space: Space) -> Gaussian:
    """Return the policy: one normally distributed number for each of an action."""
    return Gaussian(space_size(action_space), spherical=config.spherical)


LARGEST_BOUND = 1e6
"""Bounds of at least this size count as no bounds: ±3.4e38, for example, is the largest float32."""


class ActionMap:
    """Brings the policy's actions u, float32 [N, D], into an action space of real Boxes: one, or a Tuple or Dict.

    If a dimension is bounded on both sides, below `LARGEST_BOUND`, u from -1 to 1 spans it. Elsewhere u is added to the
    number within the bounds that is nearest to 0. What is then out of bounds is cut to the bound. That cut is part of
    the environment: what the policy sampled, and what its likelihood is asked of, is u before it, so the policy
    gradient has no bias.
    """

    def __init__(self, space: Space) -> None:
        self._boxes = [box for box in space.elements() if isinstance(box, Box)]
        self._low = np.concatenate([box.low.reshape(-1) for box in self._boxes])
        self._high = np.concatenate([box.high.reshape(-1) for box in self._boxes])
        bounded = np.maximum(np.abs(self._low), np.abs(self._high)) < LARGEST_BOUND
        low, high = (np.where(bounded, bound, 0.0) / 2 for bound in (self._low, self._high))
        nearest = np.clip(0.0, self._low, self._high)
        self._centre = np.where(bounded, low + high, nearest)
        self._radius = np.where(bounded, high - low, 1.0)

    def unused_bounds(self) -> str | None:
        """Return a sentence about the first finite bound that is too large to be spanned, or None."""
        for index, bounds in enumerate(zip(self._low.tolist(), self._high.tolist(), strict=True)):
            for bound in bounds:
                if LARGEST_BOUND <= abs(bound) < np.inf:
                    return (
                        f"the bound {bound:g} of action element {index} is not below {LARGEST_BOUND:,.0f}: the element "
                        "is taken as unbounded and actions begin near 0; if the bound is meant, scale the action space"
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

    def of_output(self, head: str) -> ScaledOutput:
        """Return the same map of a head's outputs, as data."""
        return ScaledOutput(head, self._centre, self._radius, self._low, self._high)


def action_refusal(space: Space) -> str | None:
    """Return the spaces that can be handled, where `space` is none of them; else None."""
    if all(isinstance(box, Box) and box.dtype.kind == "f" for box in space.elements()):
        return None
    sentence = "it handles Box of real numbers, and Tuple or Dict of them"
    discrete = isinstance(space, Discrete | MultiDiscrete | MultiBinary)
    return sentence + ("; da3c handles Discrete, MultiDiscrete and MultiBinary" if discrete else "")
