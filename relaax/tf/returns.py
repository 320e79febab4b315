"""Targets for value functions and advantages, worked out backwards over a rollout. Pure numpy: a rollout is short."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def n_step_returns(r_t: Floats, discount_t: Floats, bootstrap_value: Floats) -> Floats:
    """Discounted sums of the rewards to the rollout's end, and of what is expected after it.

    R_t = r_t + discount_t * R_{t+1}, with R_T the bootstrap value (Mnih et al. 2016, Algorithm S3).

    Args:
      r_t: float32 [T, N], rewards of the actions taken at t.
      discount_t: float32 [T, N], gamma where the episode went on after the action at t, 0 where it ended.
      bootstrap_value: float32 [N], V of the observation after the last action.

    Returns:
      float32 [T, N].

    Raises:
      ValueError: where the shapes do not fit.
    """
    if r_t.ndim != 2 or discount_t.shape != r_t.shape or bootstrap_value.shape != r_t.shape[1:]:
        raise ValueError(
            f"[T, N], [T, N] and [N] are needed, not {r_t.shape}, {discount_t.shape}, {bootstrap_value.shape}"
        )
    returns = np.empty_like(r_t)
    following = bootstrap_value
    for t in range(len(r_t) - 1, -1, -1):
        following = r_t[t] + discount_t[t] * following
        returns[t] = following
    return returns
