"""Targets of value functions, advantages, the loss of action values, and held-out states.

Discounts mark the ends of episodes: `discount_t` is gamma if the episode continued after the action at t, and 0 if it
ended, since the next row belongs to another episode. If it was truncated,
`relaax.algorithm_base.rollout.rewards_and_discounts` adds the discounted value of its last observation to the reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from relaax.nn.action_values import ActionValues
from relaax.nn.distributions import masked
from relaax.nn.host.kernels import discounted_sums

Floats = npt.NDArray[np.float32]
Actions = npt.NDArray[np.integer[Any]]


def n_step_returns(r_t: Floats, discount_t: Floats, bootstrap_value: Floats) -> Floats:
    """Return the discounted sums of the rewards to the rollout's end and of the bootstrap value, float32 [T, N].

    R_t = r_t + discount_t * R_{t+1}, with R_T the bootstrap value (Mnih et al. 2016, Algorithm S3).

    r_t, discount_t: float32 [T, N]; the discount is gamma if the episode continued after the action at t, else 0.
    bootstrap_value: float32 [N], V of the observation after the last action. Raises ValueError for other shapes.
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
    """Return generalized advantage estimates, float32 [T, N]: lambda 1 has more variance, lambda 0 more bias.

    A_t = delta_t + discount_t * lambda * A_{t+1}, with delta_t = r_t + discount_t * v_{t+1} - v_t and v_T the bootstrap
    value (Schulman et al. 2016, equation 16). With lambda 1 they are `n_step_returns` minus the values.

    v_t: float32 [T, N], V of the observations at t; the others as for `n_step_returns`.
    """
    _check(r_t, discount_t, bootstrap_value)
    if v_t.shape != r_t.shape:
        raise ValueError(f"v_t must have the shape of r_t, {r_t.shape}, not {v_t.shape}")
    # All deltas at once; the kernel then sums them in place.
    advantages = np.empty(r_t.shape, np.float32)  # in C order, also if the rewards are not
    np.multiply(discount_t[:-1], v_t[1:], out=advantages[:-1])
    np.multiply(discount_t[-1], bootstrap_value, out=advantages[-1])
    advantages += r_t
    advantages -= v_t
    decay_t = np.multiply(discount_t, lambda_, dtype=np.float32)
    discounted_sums(advantages, decay_t)
    return advantages


def _check(r_t: Floats, discount_t: Floats, bootstrap_value: Floats) -> None:
    if r_t.ndim != 2 or discount_t.shape != r_t.shape or bootstrap_value.shape != r_t.shape[1:]:
        raise ValueError(
            "r_t, discount_t and bootstrap_value must have shapes [T, N], [T, N] and [N], not "
            f"{r_t.shape}, {discount_t.shape}, {bootstrap_value.shape}"
        )


def values_of(q_t: Floats, a_t: Actions) -> Floats:
    """Return the values of the actions a_t, float32 [...].

    q_t: float32 [..., A]. a_t: integers [...], from 0. Raises ValueError if the shapes do not match.
    """
    if a_t.shape != q_t.shape[:-1]:
        raise ValueError(f"actions must have the shape of q_t, {q_t.shape}, without its last axis, not {a_t.shape}")
    chosen: Floats = np.take_along_axis(q_t, a_t[..., None], axis=-1)[..., 0]
    return chosen


def greedy_values(
    q_t: Floats, selector_q_t: Floats | None = None, valid: npt.NDArray[np.bool_] | None = None
) -> Floats:
    """Return the values of the best actions, float32 [...], according to q_t [..., A] of the target network.

    With `selector_q_t` of the online network they are double estimates: `selector_q_t` selects the best action, and
    `q_t` gives its value (van Hasselt et al. 2016, equation 4). This avoids selecting an action because its value is
    overestimated. With `valid`, bool [..., A], the best action is one of the valid ones.

    Raises ValueError if the shapes differ.
    """
    if selector_q_t is None:
        best: Floats = masked(q_t, valid).max(axis=-1)
        return best
    if selector_q_t.shape != q_t.shape:
        raise ValueError(f"q_t and selector_q_t must have one shape, not {q_t.shape} and {selector_q_t.shape}")
    return values_of(q_t, masked(selector_q_t, valid).argmax(axis=-1))


def one_step_targets(r_t: Floats, discount_t: Floats, v_tp1: Floats) -> Floats:
    """Return y_t = r_t + discount_t * v_{t+1}, float32 [...], for arguments of the same shape.

    With `greedy_values` of the next observation this is the target of Q-learning; with `values_of` the next action,
    that of Sarsa (Mnih et al. 2016, Algorithm 1 and section 4). Raises ValueError if the shapes differ.
    """
    if not r_t.shape == discount_t.shape == v_tp1.shape:
        raise ValueError(
            f"r_t, discount_t and v_tp1 must have one shape, not {r_t.shape}, {discount_t.shape} and {v_tp1.shape}"
        )
    return r_t + discount_t * v_tp1


Errors = Literal["squared", "huber"]


def squared(errors: Floats) -> tuple[Floats, Floats]:
    """Return e^2 and its derivative 2 e, float32 [B] each (Mnih et al. 2016, Algorithm 1)."""
    return errors * errors, 2 * errors


def huber(errors: Floats) -> tuple[Floats, Floats]:
    """Return Huber's loss and its derivative, float32 [B] each: e^2 / 2 if |e| is at most 1, else |e| - 1/2.

    The derivative is the error, clipped to plus and minus 1, as in Mnih et al. 2015.
    """
    size = np.abs(errors)
    inner = np.minimum(size, 1)
    return inner * (size - np.float32(0.5) * inner), np.clip(errors, -1, 1)


LOSSES = {"squared": squared, "huber": huber}


MARGIN = np.float32(0.8)
"""The margin of Hester et al. 2018, section 4."""


class ValueLoss:
    """The sum over a batch of w_i * loss(Q(s_i, a_i) - y_i). The targets y_i are constants.

    An engine calls it with the outputs of some examples (head -> float32 [B, width]). It returns the derivative of the
    loss with respect to these outputs, in the same form.

    `a_t`: int64 [B], from 0. `targets`, `weights`: float32 [B]. The weight w_i is 0 for a void example, an importance
    weight with prioritised sampling, and 1 / environments for a mean over environments.

    `margin_weights`: float32 [B], m_i. If given, the loss also has m_i w_i (max_a (Q(s_i, a) + l(a)) - Q(s_i, a_i)),
    where l(a) is `MARGIN`, and 0 for a_i: the action of a demonstration shall be the best by this margin (Hester et al.
    2018, equation 2).
    """

    def __init__(
        self,
        values: ActionValues,
        errors: Errors,
        a_t: npt.NDArray[Any],
        targets: Floats,
        weights: Floats,
        margin_weights: Floats | None = None,
    ) -> None:
        self._margin_weights = margin_weights
        self._margins = 0.0
        self._values, self._loss = values, LOSSES[errors]
        self._a_t, self._targets, self._weights = a_t, targets, weights
        self.errors: Floats = np.zeros(len(targets), np.float32)
        """Q(s_i, a_i) - y_i of the examples so far, float32 [B]. Prioritised replay uses the absolute values."""
        self._sum = 0.0
        self._chosen = 0.0

    def __call__(self, outputs: Mapping[str, Floats], part: slice) -> dict[str, Floats]:
        values, a_t, weights = self._values.values(outputs), self._a_t[part], self._weights[part]
        chosen = values_of(values, a_t)
        self.errors[part] = errors = chosen - self._targets[part]
        losses, by_chosen = self._loss(errors)
        self._sum += float(np.dot(weights, losses))
        self._chosen += float(np.dot(weights, chosen))
        by_values = np.zeros_like(values)
        np.put_along_axis(by_values, a_t[:, None], (weights * by_chosen)[:, None], axis=1)
        if self._margin_weights is not None:
            self._add_margins(by_values, values, chosen, part)
        return self._values.gradient(by_values)

    def _add_margins(self, by_values: Floats, values: Floats, chosen: Floats, part: slice) -> None:
        assert self._margin_weights is not None
        weights, rows = self._margin_weights[part] * self._weights[part], np.arange(len(values))
        above = values + MARGIN
        above[rows, self._a_t[part]] = chosen
        best = above.argmax(axis=1)
        by_values[rows, best] += weights
        by_values[rows, self._a_t[part]] -= weights
        self._margins += float(np.dot(weights, above[rows, best] - chosen))

    @property
    def means(self) -> dict[str, float]:
        """Weighted means of the loss, of |error| and of Q(s, a) over the examples so far; with margins, also theirs."""
        count = max(float(self._weights.sum()), 1e-9)
        size = float(np.dot(self._weights, np.abs(self.errors)))
        found = {"loss": self._sum / count, "loss/td_error": size / count, "q/chosen": self._chosen / count}
        return found if self._margin_weights is None else {**found, "loss/margin": self._margins / count}


KEEP_INTERVAL = 16
"""Steps between two held-out states: states of consecutive steps are nearly the same."""
REPORT_SECONDS = 10.0
"""Seconds between two evaluations of the held-out states."""


class HeldOutStates:
    """A fixed set of an agent's first inputs, whose mean value is a metric.

    Its curve is smoother than that of returns (Mnih et al. 2015, extended data figure 2). The inputs are not
    normalised. Each agent has its own set, so it changes if the client reconnects.

    `valid`: the valid actions of these states, bool [size, A]; None without masks, or if the set is not complete.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: list[npt.NDArray[Any]] = []
        self._kept_valid: list[npt.NDArray[np.bool_]] = []
        self._count = 0
        self._steps = 0
        self._inputs: npt.NDArray[Any] | None = None
        self.valid: npt.NDArray[np.bool_] | None = None
        self._next = 0.0

    def add(
        self,
        inputs: npt.NDArray[Any],
        valid: npt.NDArray[np.bool_] | None = None,
        held: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Add the inputs [N, ...] of every `KEEP_INTERVAL`-th call, until the set is complete.

        `valid`: bool [N, A]. `held`: bool [N], rows to leave out; None if there are none.
        """
        if self._count >= self._size:
            return
        if self._steps % KEEP_INTERVAL == 0:
            if held is not None:
                inputs, valid = inputs[~held], None if valid is None else valid[~held]
            self._kept.append(inputs[: self._size - self._count].copy())
            if valid is not None:
                self._kept_valid.append(valid[: self._size - self._count].copy())
            self._count += len(self._kept[-1])
            if self._count == self._size:
                self._inputs, self._kept = np.concatenate(self._kept), []
                self.valid = np.concatenate(self._kept_valid) if self._kept_valid else None
        self._steps += 1

    def due(self, now: float) -> npt.NDArray[Any] | None:
        """Return the set, [size, ...], if it is complete and an evaluation is due; else None. `now`: in seconds."""
        if self._inputs is None or now < self._next:
            return None
        self._next = now + REPORT_SECONDS
        return self._inputs
