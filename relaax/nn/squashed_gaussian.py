"""Real actions between -1 and 1: the tanh of normally distributed numbers (Haarnoja et al. 2018, appendix C)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

MEAN, LOG_STD = "mean", "log_std"
LEAST_LOG_STD, LARGEST_LOG_STD = np.float32(-20), np.float32(2)
"""Bounds of the logarithm of the standard deviation, as in the authors' code of Haarnoja et al. 2018."""


@dataclass(frozen=True, slots=True)
class SquashedSample:
    """Actions a = tanh(u), u = mean + std * noise, and their log-probabilities.

    actions, noise, std: float32 [B, A]. log_probability: float32 [B], of the actions. bounded: bool [B, A], where the
    output `log_std` was outside its bounds, so that the derivative by it is 0.
    """

    actions: Array
    log_probability: Array
    noise: Array
    std: Array
    bounded: npt.NDArray[np.bool_]

    def gradient(self, by_log_probability: float | Array, by_actions: Array) -> dict[str, Array]:
        """Return the derivative by the outputs, head -> float32 [B, A], with constant noise (reparameterised).

        `by_log_probability`: the derivative of the loss by the log-probabilities, float32 [B] or one number.
        `by_actions`: its direct derivative by the actions, float32 [B, A].
        """
        # For constant noise, log N(u) depends on -log std only. The derivative of -log(1 - tanh(u)^2) is 2 tanh(u).
        weights = np.asarray(by_log_probability, np.float32).reshape(-1, 1)
        by_u: Array = by_actions * (1 - self.actions * self.actions) + 2 * weights * self.actions
        by_log_std = by_u * self.noise * self.std - weights
        by_log_std[self.bounded] = 0
        return {MEAN: by_u, LOG_STD: by_log_std}


def squashed_heads(actions: int) -> dict[str, int]:
    """Return the names and widths of the heads for actions of this many real numbers."""
    return {MEAN: actions, LOG_STD: actions}


def sample(outputs: Mapping[str, Array], noise: Array) -> SquashedSample:
    """Return the actions for standard normal `noise`, float32 [B, A]. `outputs`: head -> float32 [B, A]."""
    log_std = np.clip(outputs[LOG_STD], LEAST_LOG_STD, LARGEST_LOG_STD)
    std = np.exp(log_std)
    u = outputs[MEAN] + std * noise
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)) does not lose digits for large |u|.
    log_slope = 2 * (np.float32(math.log(2)) - u - np.logaddexp(np.float32(0), -2 * u))
    log_density = -0.5 * noise * noise - log_std - np.float32(0.5 * math.log(2 * math.pi))
    log_probability: Array = (log_density - log_slope).sum(axis=1)
    return SquashedSample(np.tanh(u), log_probability, noise, std, log_std != outputs[LOG_STD])
