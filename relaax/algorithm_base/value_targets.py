"""Targets of action values, on the host. What comes after an episode's end is told apart by the discounts.

`discount_t` is gamma if the episode went on after the action at t, and 0 if it terminated. An episode that was cut off
would have gone on: `relaax.algorithm_base.rollout.what_came_of` adds the discounted value of its last observation to
the reward, and the discount is 0, since the next row belongs to another episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Actions = npt.NDArray[np.integer[Any]]


def values_of(q_t: Floats, a_t: Actions) -> Floats:
    """Take the values of the actions that were chosen.

    Args:
      q_t: float32 [..., A], values of all actions.
      a_t: integers [...], from 0.

    Returns:
      float32 [...].

    Raises:
      ValueError: if the shapes do not fit.
    """
    if a_t.shape != q_t.shape[:-1]:
        raise ValueError(f"[...] actions for values [..., A] are needed, not {a_t.shape} for {q_t.shape}")
    chosen: Floats = np.take_along_axis(q_t, a_t[..., None], axis=-1)[..., 0]
    return chosen


def greedy_values(q_t: Floats, selector_q_t: Floats | None = None) -> Floats:
    """Take the values of the best actions.

    With a selector they are double estimates: it says which action is best, and `q_t` what that is worth (van Hasselt
    et al. 2016, equation 4). A value that a network overestimates is then not chosen for that.

    Args:
      q_t: float32 [..., A], of the target network.
      selector_q_t: float32 [..., A], of the online network; None for the maximum of `q_t`.

    Returns:
      float32 [...].

    Raises:
      ValueError: if the shapes do not fit.
    """
    if selector_q_t is None:
        best: Floats = q_t.max(axis=-1)
        return best
    if selector_q_t.shape != q_t.shape:
        raise ValueError(f"values of one shape are needed, not {q_t.shape} and {selector_q_t.shape}")
    return values_of(q_t, selector_q_t.argmax(axis=-1))


def one_step_targets(r_t: Floats, discount_t: Floats, v_tp1: Floats) -> Floats:
    """Compute y_t = r_t + discount_t * v_{t+1}.

    It is that of Q-learning with `greedy_values` of the observation after the action, and that of Sarsa with
    `values_of` the action that was taken there (Mnih et al. 2016, Algorithm 1 and section 4).

    Args:
      r_t: float32 [...], rewards of the actions taken at t.
      discount_t: float32 [...].
      v_tp1: float32 [...], value of the observation that followed.

    Returns:
      float32 [...].

    Raises:
      ValueError: if the shapes do not fit.
    """
    if not r_t.shape == discount_t.shape == v_tp1.shape:
        raise ValueError(f"one shape is needed, not {r_t.shape}, {discount_t.shape} and {v_tp1.shape}")
    return r_t + discount_t * v_tp1
