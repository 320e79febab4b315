"""Draw items, uniformly or by their priority."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relaax.replay.sum_tree import Priorities, Slots, SumTree


class ItemSampler:
    """Draw slots with replacement, slot i with probability w_i / Σ w.

    The weight w_i is priority ** `alpha` (Schaul et al. 2016, equation 1), or 1 if `alpha` is None: uniform. Every draw
    is independent of all others, so that several tables, each drawn from as often as its `total` says, draw as one.
    Priority zero weighs nothing, except that with `alpha` 0 it weighs 1 as all others do. Not thread-safe.
    """

    def __init__(self, capacity: int, alpha: float | None) -> None:
        self._alpha = alpha
        self._tree = SumTree(capacity)

    @property
    def total(self) -> float:
        """Return the sum of all weights."""
        return self._tree.total

    def set(self, slots: Slots, priorities: Priorities) -> None:
        """Give the items in `slots` int64 [n] the `priorities` float64 [n]."""
        self.set_weights(slots, np.ones(len(slots)) if self._alpha is None else priorities**self._alpha)

    def remove(self, slots: Slots) -> None:
        """Never draw from `slots` int64 [n] again until they are set."""
        self.set_weights(slots, np.zeros(len(slots)))

    def weights(self, slots: Slots) -> Priorities:
        """Return the weights float64 [n] of `slots` int64 [n]."""
        return self._tree.get(slots)

    def set_weights(self, slots: Slots, weights: Priorities) -> None:
        """Give `slots` int64 [n] the `weights` float64 [n] that `weights` has returned before."""
        self._tree.set(slots, weights)

    def draw(self, count: int, rng: np.random.Generator, occupied: Callable[[], Slots]) -> tuple[Slots, Priorities]:
        """Return slots int64 [count] and the probability float64 [count] of each.

        If every weight is zero, all slots of `occupied()`, int64 [n], are equally probable.
        """
        total = self.total
        if total > 0:
            slots = self._tree.find(rng.random(count) * total)
            return slots, self._tree.get(slots) / total
        there = occupied()
        return there[rng.integers(len(there), size=count)], np.full(count, 1 / len(there))
