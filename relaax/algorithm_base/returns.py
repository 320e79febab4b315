"""Compute targets for value functions, and advantages, backwards over a rollout on the host: a rollout is short."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def n_step_returns(r_t: Floats, discount_t: Floats, bootstrap_value: Floats) -> Floats:
    """Discounted sums of the rewards to the rollout's end, and of what is expected after it.

    R_t = r_t + discount_t * R_{t+1}, with R_T the bootstrap value (Mnih et al. 2016, Algorithm S3).

    Args:
      r_t: float32 [T, N], rewards of the actions taken at t.
      discount_t: float32 [T, N], gamma if the episode went on after the action at t, 0 if it ended.
      bootstrap_value: float32 [N], V of the observation after the last action.

    Returns:
      float32 [T, N].

    Raises:
      ValueError: if the shapes do not fit.
    """
    _check(r_t, discount_t, bootstrap_value)
    returns = np.empty_like(r_t)
    following = bootstrap_value
    for t in range(len(r_t) - 1, -1, -1):
        following = r_t[t] + discount_t[t] * following
        returns[t] = following
    return returns


def generalized_advantages(
    r_t: Floats, discount_t: Floats, v_t: Floats, bootstrap_value: Floats, lambda_: float
) -> Floats:
    """Advantages that trade variance (lambda 1) against the bias of the values (lambda 0).

    A_t = delta_t + discount_t * lambda * A_{t+1}, with delta_t = r_t + discount_t * v_{t+1} - v_t and v_T the bootstrap
    value (Schulman et al. 2016, equation 16). With lambda 1 they are `n_step_returns` minus the values.

    Args:
      r_t: float32 [T, N], rewards of the actions taken at t.
      discount_t: float32 [T, N], gamma if the episode went on after the action at t, 0 if it ended.
      v_t: float32 [T, N], V of the observations acted on at t.
      bootstrap_value: float32 [N], V of the observation after the last action.
      lambda_: from 0 to 1.

    Returns:
      float32 [T, N].

    Raises:
      ValueError: if the shapes do not fit.
    """
    _check(r_t, discount_t, bootstrap_value)
    if v_t.shape != r_t.shape:
        raise ValueError(f"values of shape {r_t.shape} are needed, as the rewards, not {v_t.shape}")
    # All deltas at once, which are then added up where they stand.
    advantages = np.empty(r_t.shape, np.float32)  # in C order, whatever that of the rewards
    np.multiply(discount_t[:-1], v_t[1:], out=advantages[:-1])
    np.multiply(discount_t[-1], bootstrap_value, out=advantages[-1])
    advantages += r_t
    advantages -= v_t
    decay_t = np.multiply(discount_t, lambda_, dtype=np.float32)
    _discounted_sums()(advantages, decay_t)
    return advantages


@cache
def _discounted_sums() -> Callable[[Floats, Floats], None]:
    from relaax.nn.host.kernels import discounted_sums  # numba with it: only in a process that learns

    return discounted_sums


def _check(r_t: Floats, discount_t: Floats, bootstrap_value: Floats) -> None:
    if r_t.ndim != 2 or discount_t.shape != r_t.shape or bootstrap_value.shape != r_t.shape[1:]:
        raise ValueError(
            f"[T, N], [T, N] and [N] are needed, not {r_t.shape}, {discount_t.shape}, {bootstrap_value.shape}"
        )
