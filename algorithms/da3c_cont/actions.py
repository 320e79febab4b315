"""The policy's actions, and those of a bounded space."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import (
    Box,
    Discrete,
    Leaves,
    MultiBinary,
    MultiDiscrete,
    ScaledOutput,
    Space,
    space_size,
)
from relaax.nn.distributions import Gaussian

from .config import Config


def gaussian(config: Config, action_space: Space) -> Gaussian:
    """Return the policy: one normally distributed number for each of an action."""
    return Gaussian(space_size(action_space), spherical=config.spherical)


class ActionMap:
    """Brings the policy's actions u, float32 [N, D], into an action space of real Boxes: one, or a Tuple or Dict.

    If a dimension is bounded on both sides, u from -1 to 1 spans it; elsewhere u is taken as it is. What is then out
    of bounds is cut to the bound. That cut is part of the environment: what the policy sampled, and what its likelihood
    is asked of, is u before it, so the policy gradient has no bias.
    """

    def __init__(self, space: Space) -> None:
        self._boxes = [box for box in space.elements() if isinstance(box, Box)]
        self._low = np.concatenate([box.low.reshape(-1) for box in self._boxes])
        self._high = np.concatenate([box.high.reshape(-1) for box in self._boxes])
        bounded = np.isfinite(self._low) & np.isfinite(self._high)
        # Halves first: the difference of the largest numbers is not a number.
        low, high = (np.where(bounded, bound, 0.0) / 2 for bound in (self._low, self._high))
        self._centre = low + high
        self._radius = np.where(bounded, high - low, 1.0)

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
