"""Bounds of what a network learns from, so that one client cannot spoil the batches of others."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.normalization import INPUT_LIMIT
from relaax.algorithm_base.step import Mask
from relaax.metrics.rate_limited_log import RateLimitedLog

_complain = RateLimitedLog(logging.getLogger(__name__))
Numbers = npt.NDArray[Any]

TARGET_LIMIT = 1e6
"""The largest return, normalised and clipped, that is inserted into replay memory."""
INPUTS_APART, TARGETS_APART = 1e3, 1e6
"""An item is an outlier of its batch if its largest input, or its target, is more than this times the median, or than
this where the median is below 1.
"""


def within_limits(rewards: Numbers, *observations: Numbers) -> Mask:
    """Return which of B transitions may be learned from: bool [B].

    rewards: [B]. observations: [B, ...], before they are normalised; none if they are normalised, or images.
    """
    good: Mask = np.abs(rewards) <= TARGET_LIMIT  # False for NaN
    for each in observations:
        good &= _largest(each) <= INPUT_LIMIT
    return good


def log_left_out(count: int, total: int, client: str) -> None:
    """Log that transitions are not inserted, at most once a minute."""
    _complain(
        "%d of %d transitions of %s are not learned from: the limits are %g for observations and %g for returns; "
        "algorithm.normalize_observations and normalize_rewards bring them into range",
        *(count, total, client or "a client", INPUT_LIMIT, TARGET_LIMIT),
    )


def batch_outliers(targets: Numbers, *observations: Numbers) -> Mask | None:
    """Return which of B items are outliers of their batch, bool [B], and log how many; None without outliers.

    targets: [B]. observations: [B, ...]; none if they are normalised, or images.
    """
    found = ~(np.abs(targets) <= _limit(np.abs(targets), TARGETS_APART))  # True for NaN
    for each in observations:
        largest = _largest(each)
        found |= ~(largest <= _limit(largest, INPUTS_APART))
    if not found.any():
        return None
    _complain("%d of %d items of a batch are outliers, and are not learned from", np.count_nonzero(found), len(targets))
    return found


def _largest(inputs: Numbers) -> Numbers:
    largest: Numbers = np.abs(inputs.reshape(len(inputs), -1)).max(axis=1)
    return largest


def _limit(sizes: Numbers, apart: float) -> float:
    middle = len(sizes) // 2
    return apart * max(1.0, float(np.partition(sizes, middle)[middle]))  # of NaN, which sorts last, at most half
