"""Softmax policies in compiled kernels, each in one call: numpy's small calls add up."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.machine_code import FLAT, READ, Kernel, compiled, types

Array = npt.NDArray[np.float32]

_NULL = np.float32(0)


def softmax_gradient(
    logits: Array, a_t: npt.NDArray[Any], by_log_probability: Array, by_entropy: Array
) -> tuple[Array, Array, Array]:
    """Compute the derivative by the logits of a loss in log pi(a_t) and the entropy, for a softmax pi.

    `logits` float32 [B, A]; `a_t` integers [B]; the loss's derivatives by log pi(a_t) and by the entropy, float32 [B].
    Returns float32 [B, A]; log pi(a_t) and the entropy, float32 [B]. Raises IndexError if an action is none of the A.
    """
    logits = np.asarray(logits, np.float32)
    by_logits = np.empty(logits.shape, np.float32)
    log_probability, entropy = np.empty((2, len(logits)), np.float32)
    actions = _checked(a_t, logits)
    _softmax()(logits, actions, by_log_probability, by_entropy, by_logits, log_probability, entropy)
    return by_logits, log_probability, entropy


def softmax_log_probability(logits: Array, a_t: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Compute log pi(a_t), float64 [N]. `logits` float32 [N, A]; `a_t` integers [N].

    Raises IndexError if an action is none of the A.
    """
    logits = np.asarray(logits, np.float32)
    found = np.empty(len(logits))
    _log_probability()(logits, _checked(a_t, logits), found)
    return found


def _checked(a_t: npt.NDArray[Any], logits: Array) -> npt.NDArray[np.int64]:
    if a_t.shape != logits.shape[:1]:
        raise ValueError(f"{len(logits)} actions are needed, one for each row, not {a_t.shape}")
    return np.ascontiguousarray(a_t, np.int64)


def compile_kernels() -> None:
    """Compile everything, for a process that is forked later: seconds once, then milliseconds."""
    _softmax(), _log_probability()


def _softmax_kernel(
    logits: Any,
    actions: Any,
    by_log_probability: Any,
    by_entropy: Any,
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
        # By logit j: of log pi(a) it is [j = a] - pi_j, of the entropy -pi_j * (log pi_j + entropy).
        for j in range(choices):
            surplus = logits[row, j] - largest - log_total + entropy
            by_logits[row, j] *= -(surplus * by_entropy[row] + by_log_probability[row])
        by_logits[row, taken] += by_log_probability[row]


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


_HEAD = types.Array(types.float32, 2, "A", readonly=True)  # columns of what the heads gave together
_ROWS = types.Array(types.float32, 2, "C")
_ACTIONS = types.Array(types.int64, 1, "C", readonly=True)


@cache
def _softmax() -> Kernel:
    return compiled(_softmax_kernel, _HEAD, _ACTIONS, READ, READ, _ROWS, FLAT, FLAT)


@cache
def _log_probability() -> Kernel:
    return compiled(_log_probability_kernel, _HEAD, _ACTIONS, types.Array(types.float64, 1, "C"))
