"""How much actors explore: schedules of epsilon, and actions that are random with that probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LinearAnnealing:
    """From `initial` at 0 in a straight line to `final` at `over`, and `final` from there on.

    `final` may be an array, one value for each actor.
    """

    initial: float
    final: float | Array
    over: float

    def __call__(self, count: float) -> Any:
        """Return the value after so many frames, steps or updates."""
        done = min(1.0, max(0.0, count / self.over)) if self.over > 0 else 1.0
        return self.initial + done * (self.final - self.initial)


def drawn_epsilons(seed: int, ranks: Sequence[int], epsilons: Sequence[float], probabilities: Sequence[float]) -> Array:
    """Draw a final epsilon for each actor, float64 [N] (Mnih et al. 2016, supplement, section 8).

    An actor's depends on the seed and its rank alone (`Pulled.actor_rank`). So N actors have the same N epsilons after
    a run is resumed, whatever their actor indices are. In the paper a thread draws again from time to time; here an
    actor draws once.
    """
    draws = [np.random.default_rng([seed, rank, _DRAW]).random() for rank in ranks]
    bounds = np.cumsum(probabilities) / np.sum(probabilities)
    chosen = np.searchsorted(bounds, draws, side="right")
    drawn: Array = np.asarray(epsilons, np.float64)[np.minimum(chosen, len(epsilons) - 1)]
    return drawn


_DRAW = 0xE9
"""Tells these random numbers from those that actions are drawn with."""


def ladder_of_epsilons(ranks: Sequence[int], count: int, base: float = 0.4, alpha: float = 7.0) -> Array:
    """Give each actor an epsilon of its own, float64 [N]: base^(1 + alpha i / (count - 1)) (Horgan et al. 2018).

    `ranks` are the places of these actors among the `count` that train (`Pulled.actor_rank`). One actor alone has
    `base`.
    """
    ladder: Array = base ** (1.0 + alpha * np.asarray(ranks) / max(count - 1, 1))
    return ladder


def epsilon_greedy(
    values: npt.NDArray[np.floating[Any]], epsilon: float | Array, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Choose the best action, or with probability epsilon any, the best one among them, int64 [N].

    `values`: [N, A]; `epsilon`: one for all, or [N].
    """
    count, choices = values.shape
    random = rng.random(count) < epsilon
    chosen: npt.NDArray[np.int64] = np.where(random, rng.integers(0, choices, count), values.argmax(axis=1))
    return chosen
