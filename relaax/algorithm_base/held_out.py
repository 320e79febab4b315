"""States that are kept aside, whose mean value says how value estimates develop."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

EVERY = 16
"""Steps between two states that are kept: those beside each other are nearly the same."""
SECONDS = 10.0
"""Between two looks at them."""


class HeldOutStates:
    """A fixed set of an agent's first inputs (Mnih et al. 2015, extended data figure 2: a smoother curve than returns).

    They are kept as they are before normalisation. The set begins with the agent: a reconnection brings another.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: list[npt.NDArray[Any]] = []
        self._count = 0
        self._steps = 0
        self._inputs: npt.NDArray[Any] | None = None
        self._next = 0.0

    def see(self, inputs: npt.NDArray[Any]) -> None:
        """Take what is needed of inputs [N, ...]."""
        if self._count >= self._size:
            return
        if self._steps % EVERY == 0:
            self._kept.append(inputs[: self._size - self._count].copy())
            self._count += len(self._kept[-1])
            if self._count == self._size:
                self._inputs, self._kept = np.concatenate(self._kept), []
        self._steps += 1

    def due(self, now: float) -> npt.NDArray[Any] | None:
        """Return the set, [size, ...], if it is complete and it is time to look at it; `now` in seconds."""
        if self._inputs is None or now < self._next:
            return None
        self._next = now + SECONDS
        return self._inputs
