"""What an evaluation found, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Played:
    """One episode: its number, counted from 0, return, length and steps.

    `steps`: of the environment until the episode was over, each of some frames. `cut`: whether it was cut off.
    """

    number: int
    episode_return: float
    length: int
    steps: int
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of the returns of some episodes.

    `std` is that of the sample (n - 1). `low` and `high` bound the mean's 95 % confidence interval.
    """

    episodes: int
    mean: float
    std: float
    low: float
    high: float
    median: float
    smallest: float
    largest: float


def statistics_of(returns: Sequence[float]) -> Statistics:
    """Return the statistics of one or more returns.

    The interval is the percentile bootstrap's (Efron 1979), of 10,000 resamples with a fixed seed: returns are often
    skewed, and the same returns give the same interval.
    """
    values = np.asarray(returns, np.float64)
    draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), (2.5, 97.5))
    return Statistics(
        episodes=len(values),
        mean=float(values.mean()),
        std=float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        low=float(low),
        high=float(high),
        median=float(np.median(values)),
        smallest=float(values.min()),
        largest=float(values.max()),
    )


def seed_of(seed: int, number: int) -> int:
    """Return the seed of an episode, below 2^31. It depends on nothing else: not on how many are played at a time."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0] >> 1)
