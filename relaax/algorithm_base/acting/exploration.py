"""Exploration: schedules of epsilon, epsilon-greedy actions, and random numbers that last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.nn.distributions import Distribution, masked

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


class PersistentNoise:
    """The random numbers that select the actions of N environments; each environment keeps its own for some steps.

    At each step, an environment draws new ones with probability 1 / `persistence`. So every action has the probability
    that the policy gives it, while the actions of an environment resemble each other: at first, when all actions are
    about equally likely, they are repeated. That reaches states which independent actions almost never reach (Dabney et
    al. 2021), and moves robots smoothly (Raffin et al. 2021, who keep noise for a fixed number of steps). With a
    `persistence` of 1 the actions are independent.
    """

    def __init__(self, policy: Distribution, persistence: float, rng: np.random.Generator) -> None:
        self._policy, self._renewal, self._rng = policy, 1 / persistence, rng
        self._noise: Array | None = None

    def sample(self, outputs: Mapping[str, npt.NDArray[np.float32]]) -> npt.NDArray[Any]:
        """Draw the next actions [N, *action_shape]. `outputs`: head -> float32 [N, width]; N never changes."""
        count = len(next(iter(outputs.values())))
        noise = self._policy.noise(count, self._rng)
        if self._noise is not None and self._renewal < 1:
            kept = self._rng.random(count) >= self._renewal
            noise[kept] = self._noise[kept]
        self._noise = noise
        return self._policy.select(outputs, noise)
