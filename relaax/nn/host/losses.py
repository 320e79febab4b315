"""What an actor-critic's gradient begins and ends with, each in one call: numpy's small calls add up."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from relaax.machine_code import FLAT, READ, Kernel, compiled

Array = npt.NDArray[np.float32]

_NULL = np.float32(0)


def softmax_gradient(
    logits: Array, a_t: npt.NDArray[Any], advantage_t: Array, entropy_weight_t: Array
) -> tuple[Array, Array, Array]:
    """The gradient by the logits of sum(-log pi(a_t) * advantage_t - entropy_weight_t * entropy), for a softmax pi.

    `logits` float32 [B, A]; `a_t` integers [B]; the others float32 [B]. Gives float32 [B, A]; the log pi(a_t) and the
    entropy, float32 [B]. Raises IndexError where an action is none of the A.
    """
    logits = np.asarray(logits, np.float32)
    by_logits = np.empty(logits.shape, np.float32)
    log_probability, entropy = np.empty((2, len(logits)), np.float32)
    actions = _checked(a_t, logits)
    _softmax()(logits, actions, advantage_t, entropy_weight_t, by_logits, log_probability, entropy)
    return by_logits, log_probability, entropy


def softmax_log_probability(logits: Array, a_t: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The log pi(a_t), float64 [N]. `logits` float32 [N, A]; `a_t` integers [N].

    Raises IndexError where an action is none of the A.
    """
    logits = np.asarray(logits, np.float32)
    found = np.empty(len(logits))
    _log_probability()(logits, _checked(a_t, logits), found)
    return found


def _checked(a_t: npt.NDArray[Any], logits: Array) -> npt.NDArray[np.int64]:
    if a_t.shape != logits.shape[:1]:
        raise ValueError(f"{len(logits)} actions are needed, one for each row, not {a_t.shape}")
    return np.ascontiguousarray(a_t, np.int64)


def value_gradient(
    values: Array, target_t: Array, weight_t: Array, factor: float, policy: tuple[Array, Array, Array], sums: Array
) -> Array:
    """The gradient by the values of factor / 2 * sum(weight_t * (value - target_t)^2), float32 [B, 1].

    And what the parts of the loss sum up to, added to `sums`, float32: first of the policy, -log pi(a_t) * advantage_t,
    then of the squared error, then the entropy, each times `weight_t`.

    `values` float32 [B, 1]; `target_t` and `weight_t` float32 [B]; `policy`: advantages, log-probabilities and
    entropies, float32 [B] each.
    """
    by_values = np.empty((len(values), 1), np.float32)
    _value()(values, target_t, weight_t, factor, *policy, by_values, sums)
    return by_values


def advantages_backwards(deltas: Array, decays: Array) -> None:
    """A_t = delta_t + decay_t * A_{t+1} over a rollout, in place: contiguous float32 [T, N] each."""
    _backwards()(deltas.reshape(-1), decays.reshape(-1), deltas.shape[1])


def compile_kernels() -> None:
    """For a process that is forked later: seconds once, then milliseconds."""
    _softmax(), _log_probability(), _value(), _backwards()


def _softmax_kernel(
    logits: Any,
    actions: Any,
    advantages: Any,
    entropy_weights: Any,
    by_logits: Any,
    log_probabilities: Any,
    entropies: Any,
) -> None:
    count, choices = logits.shape
    for row in range(count):
        largest = logits[row, 0]
        for j in range(1, choices):
            if not logits[row, j] <= largest:  # nan, too, and all that follows is nan then
                largest = logits[row, j]
        total = _NULL
        for j in range(choices):
            by_logits[row, j] = np.exp(logits[row, j] - largest)
            total += by_logits[row, j]
        log_total, entropy = np.log(total), _NULL
        for j in range(choices):
            by_logits[row, j] /= total
            entropy -= by_logits[row, j] * (logits[row, j] - largest - log_total)
        taken = actions[row]
        if not 0 <= taken < choices:
            raise IndexError("an action is none of the policy's")
        log_probabilities[row], entropies[row] = logits[row, taken] - largest - log_total, entropy
        # By logit j: (pi_j - [j = a]) * advantage, and pi_j * (log pi_j + entropy) * weight.
        for j in range(choices):
            surplus = logits[row, j] - largest - log_total + entropy
            by_logits[row, j] *= surplus * entropy_weights[row] + advantages[row]
        by_logits[row, taken] -= advantages[row]


def _log_probability_kernel(logits: Any, actions: Any, found: Any) -> None:
    count, choices = logits.shape
    for row in range(count):
        largest = logits[row, 0]
        for j in range(1, choices):
            if not logits[row, j] <= largest:
                largest = logits[row, j]
        total = 0.0
        for j in range(choices):
            total += np.exp(np.float64(logits[row, j]) - np.float64(largest))
        if not 0 <= actions[row] < choices:
            raise IndexError("an action is none of the policy's")
        found[row] = np.float64(logits[row, actions[row]]) - np.float64(largest) - np.log(total)


def _value_kernel(
    values: Any,
    targets: Any,
    weights: Any,
    factor: Any,
    advantages: Any,
    log_probabilities: Any,
    entropies: Any,
    by_values: Any,
    sums: Any,
) -> None:
    policy, square, entropy = 0.0, 0.0, 0.0
    for row in range(len(values)):
        weight, error = weights[row], values[row, 0] - targets[row]
        by_values[row, 0] = error * weight * factor
        policy -= weight * log_probabilities[row] * advantages[row]
        square += weight * error * error
        entropy += weight * entropies[row]
    sums[0] += policy
    sums[1] += square
    sums[2] += entropy


def _backwards_kernel(deltas: Any, decays: Any, width: Any) -> None:
    for i in range(len(deltas) - width - 1, -1, -1):
        deltas[i] += decays[i] * deltas[i + width]


_HEAD = types.Array(types.float32, 2, "A", readonly=True)  # columns of what the heads gave together
_ROWS = types.Array(types.float32, 2, "C")
_ACTIONS = types.Array(types.int64, 1, "C", readonly=True)


@cache
def _softmax() -> Kernel:
    return compiled(_softmax_kernel, _HEAD, _ACTIONS, READ, READ, _ROWS, FLAT, FLAT)


@cache
def _log_probability() -> Kernel:
    return compiled(_log_probability_kernel, _HEAD, _ACTIONS, types.Array(types.float64, 1, "C"))


@cache
def _value() -> Kernel:
    return compiled(_value_kernel, _HEAD, READ, READ, types.float32, READ, READ, READ, _ROWS, FLAT)


@cache
def _backwards() -> Kernel:
    return compiled(_backwards_kernel, FLAT, READ, types.int64)
