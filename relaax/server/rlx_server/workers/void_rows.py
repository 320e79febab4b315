"""Rows without meaning of environments out of step: valid observations and actions in their place. No I/O."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import Leaves
from relaax.rlx import Box, Discrete, Space

Mask = npt.NDArray[np.bool_]


class ValidObservations:
    """The latest valid observation of each environment.

    A void observation may hold any elements, such as NaN. The agent gets the latest valid one instead; before the
    first, that of another environment.
    """

    def __init__(self) -> None:
        self.latest: Leaves | None = None

    def replace(self, observations: Leaves, void: Mask | None) -> Leaves:
        """Return `observations` with valid rows where `void` (bool [N]), and keep them as the latest.

        If there is no valid observation yet, return `observations` unchanged.
        """
        if void is None:
            self.latest = observations
            return observations
        latest = self.latest
        if latest is None:
            if void.all():
                return observations
            valid = int(np.argmin(void))
            latest = [np.broadcast_to(leaf[valid], leaf.shape) for leaf in observations]
        replaced = []
        for leaf, other in zip(observations, latest, strict=True):
            copy = leaf.copy()
            copy[void] = other[void]
            copy.flags.writeable = False
            replaced.append(copy)
        self.latest = replaced
        return replaced


def void_actions(space: Space, environments: int) -> Leaves:
    """Return the smallest legal action of a space for each environment; 0 or the bound nearest to it if none is."""
    leaves: Leaves = []
    for element in space.elements():
        least: Any = 0
        if isinstance(element, Discrete):
            least = element.start
        elif isinstance(element, Box):
            least = np.where(np.isfinite(element.low), element.low, np.minimum(element.high, 0.0))
        row = np.broadcast_to(least, element.shape).astype(element.dtype)
        leaves.append(np.broadcast_to(row, (environments, *element.shape)).copy())
    return leaves
