"""Correct gradients for what other workers have changed since they were computed (Zheng et al. 2017, DC-ASGD).

Each shard does it for its own range.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from relaax.optim.vector import FlatVector, Vector


@dataclass(frozen=True)
class DelayCompensation:
    """The constants: `strength` is λ of Algorithm 2; `reach` is how many versions old a gradient may be."""

    strength: float
    reach: int


class Compensator:
    """Correct gradients (Zheng et al. 2017, Algorithm 2). Not thread-safe: it lives under its shard's lock.

    g + λ·g·g·(θ_now − θ_base), element by element: g·g stands for the diagonal of the Hessian, so this is the gradient
    at θ_now to first order. With λ = 0 it is g. θ_base comes from a ring of the newest `reach` + 1 versions, which are
    snapshots that never change; a gradient older than that is too stale. The ring is no state: a restored shard has its
    current version only, and gradients of an earlier life are refused anyway.
    """

    def __init__(self, compensation: DelayCompensation) -> None:
        self._strength = np.float32(compensation.strength)
        self._ring: deque[tuple[int, FlatVector]] = deque(maxlen=compensation.reach + 1)

    def begin(self, version: int, parameters: Vector) -> None:
        """Start with these parameters as this version: initially, and after a restore."""
        self._ring.clear()
        self.applied(version, parameters)

    def applied(self, version: int, parameters: Vector) -> None:
        """Note that an update has made these parameters, as this version."""
        self._ring.append((version, parameters.snapshot()))

    def reaches(self, base_version: int) -> bool:
        """Tell whether a gradient that was computed on this version can be corrected; else it is too stale."""
        return base_version >= self._ring[0][0]

    def corrected(self, gradient: FlatVector, base_version: int) -> FlatVector:
        """Return what is to be applied for a finite gradient, float32 [size]. It may not be finite."""
        now = self._ring[-1][1]
        base = self._ring[base_version - self._ring[0][0]][1]
        if base is now or not self._strength:
            return gradient
        with np.errstate(all="ignore"):  # what comes out is checked
            compensated: FlatVector = np.subtract(now, base)
            compensated *= gradient
            compensated *= self._strength
            compensated += 1
            compensated *= gradient
        return compensated
