"""Exploration: schedules of epsilon, and epsilon-greedy actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.nn.distributions import masked

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LinearAnnealing:
    """A value that changes linearly from `initial` at count 0 to `final` at count `over`, and then stays.

    `final` may be an array with one value for each actor.
    """

    initial: float
    final: float | Array
    over: float

    def __call__(self, count: float) -> Any:
        """Return the value after `count` frames, steps or updates."""
        done = min(1.0, max(0.0, count / self.over)) if self.over > 0 else 1.0
        return self.initial + done * (self.final - self.initial)


def drawn_epsilons(seed: int, ranks: Sequence[int], epsilons: Sequence[float], probabilities: Sequence[float]) -> Array:
    """Draw a final epsilon for each actor, float64 [N] (Mnih et al. 2016, supplement, section 8).

    An actor's epsilon depends only on the seed and on its rank (`Pulled.actor_rank`). So N actors have the same N
    epsilons after a run is resumed, even if their actor indices differ. In the paper a thread draws repeatedly; here an
    actor draws once.
    """
    draws = [np.random.default_rng([seed, rank, _EPSILON_STREAM]).random() for rank in ranks]
    bounds = np.cumsum(probabilities) / np.sum(probabilities)
    chosen = np.searchsorted(bounds, draws, side="right")
    drawn: Array = np.asarray(epsilons, np.float64)[np.minimum(chosen, len(epsilons) - 1)]
    return drawn


_EPSILON_STREAM = 0xE9
"""Part of the seed, so that these random numbers differ from the random numbers of actions."""


def ladder_of_epsilons(ranks: Sequence[int], count: int, base: float = 0.4, alpha: float = 7.0) -> Array:
    """Return an epsilon for each actor, float64 [N]: base^(1 + alpha i / (count - 1)) (Horgan et al. 2018).

    `ranks` are the ranks i of these actors among the `count` training actors (`Pulled.actor_rank`). If there is only
    one actor, its epsilon is `base`.
    """
    ladder: Array = base ** (1.0 + alpha * np.asarray(ranks) / max(count - 1, 1))
    return ladder


def epsilon_greedy(
    values: npt.NDArray[np.floating[Any]],
    epsilon: float | Array,
    rng: np.random.Generator,
    valid: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.int64]:
    """Return the best actions, replaced with probability epsilon by uniformly random ones, int64 [N].

    `values`: [N, A]; `epsilon`: one number, or [N]. The random action may be the best one. With `valid`, bool [N, A]
    with at least one true element in each row, both are chosen among the valid actions.
    """
    count, choices = values.shape
    random = rng.random(count) < epsilon
    if valid is None:
        drawn = rng.integers(0, choices, count)
    else:
        values = masked(values, valid)
        drawn = (np.cumsum(valid, axis=1) > rng.integers(0, np.count_nonzero(valid, axis=1))[:, None]).argmax(axis=1)
    chosen: npt.NDArray[np.int64] = np.where(random, drawn, values.argmax(axis=1))
    return chosen
