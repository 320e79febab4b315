"""Mergeable statistics of samples: count, mean and squared differences."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.transport.grpc_options import MAX_STATISTICS

Float64Vector = npt.NDArray[np.float64]
STATISTICS = "statistics/"
"""Prefix of the names of statistics' arrays in checkpoints and policy files."""
MAX_STATISTIC_NAME = 64
SAMPLE_LIMIT = 1e30
"""The largest magnitude of a sample; larger ones are clamped to it, so that sums of squares do not overflow."""
COUNT_LIMIT = 1e18
"""The largest number of samples in one object."""
_SQUARES = 1.01 * SAMPLE_LIMIT**2  # limit of the mean square, with room for rounding
_NAME = re.compile(r"[A-Za-z0-9_.-][A-Za-z0-9_./-]*")
_MAX_NAMES = 64


class MomentsOutOfRange(ValueError):
    """Moments that are too large for any samples within the limits. They cannot be merged with others."""


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """The number of samples, their mean, and the sum of squared differences from it.

    `mean` and `m2` are float64 of shape [D] and read-only. Raises ValueError if a number is not finite, if the count or
    an element of `m2` is negative, or if the shapes are not both [D].
    """

    count: float
    mean: Float64Vector
    m2: Float64Vector

    def __post_init__(self) -> None:
        # Copies: later changes of the given arrays must not change these.
        mean, m2 = np.array(self.mean, np.float64), np.array(self.m2, np.float64)
        if mean.ndim != 1 or mean.shape != m2.shape:
            raise ValueError(f"mean and m2 must have the same shape [D], not {mean.shape} and {m2.shape}")
        if not 0 <= self.count < np.inf:
            raise ValueError(f"the count must be finite and at least 0, not {self.count}")
        if not (np.isfinite(mean).all() and np.isfinite(m2).all()):
            raise ValueError("the mean or the sum of squared differences is not finite")
        if (m2 < 0).any():
            raise ValueError(f"a sum of squared differences must be at least 0, not {m2.min()}")
        mean.flags.writeable = m2.flags.writeable = False
        for name, value in (("count", float(self.count)), ("mean", mean), ("m2", m2)):
            object.__setattr__(self, name, value)

    @classmethod
    def zeros(cls, size: int) -> Moments:
        """Return the moments of 0 samples of `size` numbers each."""
        return cls(0.0, np.zeros(size), np.zeros(size))

    @classmethod
    def of(cls, samples: npt.ArrayLike) -> Moments:
        """Return the moments of `samples`, [B, D] of any real dtype. B may be 0.

        Samples beyond `SAMPLE_LIMIT` are clamped to it. Raises ValueError if a sample is not finite.
        """
        values = np.asarray(samples, np.float64)
        if values.ndim != 2:
            raise ValueError(f"samples must have the shape [B, D], not {list(values.shape)}")
        if not len(values):
            return cls.zeros(values.shape[1])
        with np.errstate(all="ignore"):  # `_is_within` detects an overflow
            mean = values.mean(axis=0)
            m2 = np.square(values - mean).sum(axis=0)
            is_within = _is_within(len(values), mean, m2)
        if is_within:
            return _unchecked(len(values), mean, m2)
        if not np.isfinite(values).all():
            raise ValueError("a sample is not finite")
        return cls.of(np.clip(values, -SAMPLE_LIMIT, SAMPLE_LIMIT))

    @property
    def size(self) -> int:
        """The length D of a sample."""
        return len(self.mean)

    @property
    def variance(self) -> Float64Vector:
        """The variance of the samples, float64 [D]: m2 / count, or 0 without samples."""
        variance: Float64Vector = self.m2 / self.count if self.count else np.zeros(self.size)
        return variance

    def merged(self, other: Moments) -> Moments:
        """Return the moments of all samples of both (Chan, Golub and LeVeque 1983).

        Raises ValueError if the lengths differ, and MomentsOutOfRange if the result exceeds the limits.
        """
        if self.size != other.size:
            raise ValueError(f"samples of {self.size} numbers cannot be merged with samples of {other.size}")
        if not other.count:
            return self
        if not self.count:
            return other.checked()
        count = self.count + other.count
        share = other.count / count
        with np.errstate(all="ignore"):  # in place, because this runs at every push
            difference = other.mean - self.mean
            mean = difference * share
            mean += self.mean
            difference *= difference
            difference *= self.count * share
            m2 = self.m2 + other.m2
            m2 += difference
            is_within = _is_within(count, mean, m2)
        merged = _unchecked(count, mean, m2)
        return merged if is_within else merged.checked()

    def checked(self) -> Moments:
        """Return this object. Raises MomentsOutOfRange if samples within the limits cannot have these moments."""
        with np.errstate(all="ignore"):
            is_within = _is_within(self.count, self.mean, self.m2)
        if not is_within:
            raise MomentsOutOfRange(
                f"the moments of {self.count:g} samples are too large: mean up to {np.abs(self.mean).max():g}, sum of "
                f"squared differences up to {self.m2.max():g}"
            )
        return self


def _unchecked(count: float, mean: Float64Vector, m2: Float64Vector) -> Moments:
    """Return moments that own these arrays. They are not checked, because this runs at almost every step."""
    mean.flags.writeable = m2.flags.writeable = False
    made = Moments.__new__(Moments)
    for name, value in (("count", float(count)), ("mean", mean), ("m2", m2)):
        object.__setattr__(made, name, value)
    return made


def _is_within(count: float, mean: Float64Vector, m2: Float64Vector) -> bool:
    """Return whether the count and the mean square are within their limits. False for NaN.

    If the mean squares of two objects are within the limit, that of their merge is too. The caller ignores numpy's
    floating-point errors.
    """
    if not 0 < count <= COUNT_LIMIT:
        return not count
    if mean.dot(mean) + math.sqrt(m2.dot(m2)) / count <= _SQUARES:  # an upper bound that needs no new arrays
        return True
    squares = m2 / count
    squares += np.square(mean)
    return bool(squares.max() <= _SQUARES)


def to_arrays(statistics: Mapping[str, Moments]) -> dict[str, Float64Vector]:
    """Return the arrays of each statistic: `statistics/NAME/count`, `/mean` and `/m2`."""
    return {
        f"{STATISTICS}{name}/{part}": array
        for name, moments in statistics.items()
        for part, array in (("count", np.array([moments.count])), ("mean", moments.mean), ("m2", moments.m2))
    }


def from_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> dict[str, Moments]:
    """Return the statistics in `arrays`. Raises ValueError, KeyError or IndexError if they are invalid."""
    found: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for key, array in arrays.items():
        if key.startswith(STATISTICS):
            name, _, part = key.removeprefix(STATISTICS).rpartition("/")
            found.setdefault(name, {})[part] = array
    return {name: Moments(float(parts["count"][0]), parts["mean"], parts["m2"]) for name, parts in found.items()}


def check_lengths(statistics: Mapping[str, int]) -> dict[str, int]:
    """Check the statistics that an algorithm declares (name to length). Raises ValueError if one is invalid."""
    for name, length in statistics.items():
        if len(name) > MAX_STATISTIC_NAME or not _NAME.fullmatch(name):
            raise ValueError(
                f"{name[:MAX_STATISTIC_NAME]!r} is not a valid name of a statistic: use letters, digits, '_', '.', '-' "
                f"and '/' (not first), at most {MAX_STATISTIC_NAME} characters"
            )
        if type(length) is not int or length < 1:
            raise ValueError(
                f"statistic {name} is declared with {length!r} numbers; the length must be an int of at least 1"
            )
    if len(statistics) > _MAX_NAMES:
        raise ValueError(f"{len(statistics)} statistics are declared; the limit is {_MAX_NAMES}")
    if sum(statistics.values()) > MAX_STATISTICS:
        raise ValueError(
            f"the statistics have {sum(statistics.values())} numbers together; the limit is {MAX_STATISTICS}"
        )
    return dict(statistics)
