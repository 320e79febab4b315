"""Factors of the learning rate by range of a flat vector, for several networks in one vector."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from relaax.optim.vector import FlatVector

RateFactors = Sequence[tuple[int, float]]
"""Consecutive ranges that cover a vector: (length, factor of the learning rate). Empty: factor 1 everywhere."""


def check_rate_factors(factors: RateFactors, parameters: int) -> RateFactors:
    """Return the factors; empty if all are 1.

    Raises ValueError unless the lengths are ints of at least 1 that add up to `parameters`, and the factors are finite
    and at least 0.
    """
    for length, factor in factors:
        if type(length) is not int or length < 1:
            raise ValueError(f"a length of learning_rates must be an int of at least 1, not {length!r}")
        if type(factor) not in (int, float) or not 0 <= factor < math.inf:
            raise ValueError(f"a factor of learning_rates must be a finite number of at least 0, not {factor!r}")
    covered = sum(length for length, _ in factors)
    if factors and covered != parameters:
        raise ValueError(
            f"learning_rates covers {covered} numbers, but there are {parameters} parameters: the lengths must add up "
            "to their number"
        )
    return _without_ones(factors)


def cut_rate_factors(factors: RateFactors, start: int, end: int) -> RateFactors:
    """Return the factors of the elements from `start` to `end`; empty if all are 1."""
    cut = []
    first = 0
    for length, factor in factors:
        covered = min(first + length, end) - max(first, start)
        if covered > 0:
            cut.append((covered, factor))
        first += length
    return _without_ones(cut)


def ranges_of(factors: RateFactors) -> Iterator[tuple[slice, float]]:
    """Yield each range and its factor."""
    first = 0
    for length, factor in factors:
        yield slice(first, first + length), factor
        first += length


def factor_vector(factors: RateFactors) -> FlatVector:
    """Return the factor of each element, float32 [size]."""
    lengths = [length for length, _ in factors]
    return np.repeat(np.array([factor for _, factor in factors], np.float32), lengths)


def _without_ones(factors: RateFactors) -> RateFactors:
    return () if all(factor == 1 for _, factor in factors) else tuple(factors)
