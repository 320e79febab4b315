"""Targets for value functions and advantages, the loss of action values, and states whose values are watched.

What comes after an episode's end is told apart by the discounts: `discount_t` is gamma if the episode went on after the
action at t, and 0 if it terminated. An episode that was truncated would have gone on:
`relaax.algorithm_base.rollout.what_came_of` adds the discounted value of its last observation to the reward, and the
discount is 0, since the next row belongs to another episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from relaax.nn.action_values import ActionValues

Floats = npt.NDArray[np.float32]
Actions = npt.NDArray[np.integer[Any]]


def n_step_returns(r_t: Floats, discount_t: Floats, bootstrap_value: Floats) -> Floats:
    """Return the discounted sums of the rewards to the rollout's end, and of what is expected after it, float32 [T, N].

    R_t = r_t + discount_t * R_{t+1}, with R_T the bootstrap value (Mnih et al. 2016, Algorithm S3).

    r_t, discount_t: float32 [T, N], the discount being gamma if the episode went on after the action at t, 0 if it
    ended. bootstrap_value: float32 [N], V of the observation after the last action. Raises ValueError for other shapes.
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
    """Return advantages that trade variance (lambda 1) against the bias of the values (lambda 0), float32 [T, N].

    A_t = delta_t + discount_t * lambda * A_{t+1}, with delta_t = r_t + discount_t * v_{t+1} - v_t and v_T the bootstrap
    value (Schulman et al. 2016, equation 16). With lambda 1 they are `n_step_returns` minus the values.

    v_t: float32 [T, N], V of the observations acted on at t; the others as for `n_step_returns`.
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


def values_of(q_t: Floats, a_t: Actions) -> Floats:
    """Return the values, of q_t float32 [..., A], of the actions a_t, integers [...] from 0: float32 [...].

    Raises ValueError if the shapes do not fit, as the next two do.
    """
    if a_t.shape != q_t.shape[:-1]:
        raise ValueError(f"[...] actions for values [..., A] are needed, not {a_t.shape} for {q_t.shape}")
    chosen: Floats = np.take_along_axis(q_t, a_t[..., None], axis=-1)[..., 0]
    return chosen


def greedy_values(q_t: Floats, selector_q_t: Floats | None = None) -> Floats:
    """Return the values of the best actions, float32 [...], by q_t [..., A] of the target network.

    With `selector_q_t` of the online network they are double estimates: it says which action is best, and `q_t` what
    that is worth (van Hasselt et al. 2016, equation 4). Overestimated values are then not chosen for that.
    """
    if selector_q_t is None:
        best: Floats = q_t.max(axis=-1)
        return best
    if selector_q_t.shape != q_t.shape:
        raise ValueError(f"values of one shape are needed, not {q_t.shape} and {selector_q_t.shape}")
    return values_of(q_t, selector_q_t.argmax(axis=-1))


def one_step_targets(r_t: Floats, discount_t: Floats, v_tp1: Floats) -> Floats:
    """Return y_t = r_t + discount_t * v_{t+1}, float32 [...], as all of these are.

    It is that of Q-learning with `greedy_values` of the observation after the action, and that of Sarsa with
    `values_of` the action that was taken there (Mnih et al. 2016, Algorithm 1 and section 4).
    """
    if not r_t.shape == discount_t.shape == v_tp1.shape:
        raise ValueError(f"one shape is needed, not {r_t.shape}, {discount_t.shape} and {v_tp1.shape}")
    return r_t + discount_t * v_tp1


Errors = Literal["squared", "huber"]


def squared(errors: Floats) -> tuple[Floats, Floats]:
    """Compute e^2 and its derivative 2 e, float32 [B] each (Mnih et al. 2016, Algorithm 1)."""
    return errors * errors, 2 * errors


def huber(errors: Floats) -> tuple[Floats, Floats]:
    """Compute Huber's loss and its derivative, float32 [B] each: e^2 / 2 up to 1, then |e| - 1/2.

    Its derivative is the error, cut to plus and minus 1, as Mnih et al. 2015 cut it.
    """
    size = np.abs(errors)
    inner = np.minimum(size, 1)
    return inner * (size - np.float32(0.5) * inner), np.clip(errors, -1, 1)


LOSSES = {"squared": squared, "huber": huber}


class ValueLoss:
    """The sum over a batch of w_i * loss(Q(s_i, a_i) - y_i). The targets y_i are constants.

    An engine calls it with the outputs of some examples (head -> float32 [B, width]), and goes on with the derivative
    by them that it returns, in the same form.

    `a_t`: int64 [B], from 0. `targets`, `weights`: float32 [B]; a weight says how much an example counts: 0 if it is
    void, the importance weight if it was drawn with another probability than others, 1 / environments for a mean
    over them.
    """

    def __init__(
        self, values: ActionValues, errors: Errors, a_t: npt.NDArray[Any], targets: Floats, weights: Floats
    ) -> None:
        self._values, self._loss = values, LOSSES[errors]
        self._a_t, self._targets, self._weights = a_t, targets, weights
        self.errors: Floats = np.zeros(len(targets), np.float32)
        """Q(s_i, a_i) - y_i of the examples so far, float32 [B]: the sizes are what prioritised replay needs."""
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
        return self._values.gradient(by_values)

    @property
    def means(self) -> dict[str, float]:
        """The loss, the size of the errors and Q(s, a), as weighted means of the examples so far."""
        count = max(float(self._weights.sum()), 1e-9)
        size = float(np.dot(self._weights, np.abs(self.errors)))
        return {"loss": self._sum / count, "loss/td_error": size / count, "q/chosen": self._chosen / count}


EVERY = 16
"""Steps between two states that are kept: those beside each other are nearly the same."""
SECONDS = 10.0
"""Between two looks at them."""


class HeldOutStates:
    """A fixed set of an agent's first inputs (Mnih et al. 2015, extended data figure 2: a smoother curve than returns).

    They are kept as they are before normalisation. The set begins with the agent: a reconnection brings another.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: list[npt.NDArray[Any]] = []
        self._count = 0
        self._steps = 0
        self._inputs: npt.NDArray[Any] | None = None
        self._next = 0.0

    def see(self, inputs: npt.NDArray[Any]) -> None:
        """Take what is needed of inputs [N, ...]."""
        if self._count >= self._size:
            return
        if self._steps % EVERY == 0:
            self._kept.append(inputs[: self._size - self._count].copy())
            self._count += len(self._kept[-1])
            if self._count == self._size:
                self._inputs, self._kept = np.concatenate(self._kept), []
        self._steps += 1

    def due(self, now: float) -> npt.NDArray[Any] | None:
        """Return the set, [size, ...], if it is complete and it is time to look at it; `now` in seconds."""
        if self._inputs is None or now < self._next:
            return None
        self._next = now + SECONDS
        return self._inputs
