"""Kernels of the host: the hyperbolic tangent, products for a few examples, softmax policies, sums over a rollout.

Each kernel is one call and replaces many small calls of numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.machine_code import ANY_ORDER, FLAT, READ, SIGNED, ArrayType, compiled_once, inlined

Array = npt.NDArray[np.float32]

_NULL, _ZERO, _ONE, _TWO, _THREE, _FOUR = np.float32(0), *(np.uint64(number) for number in range(5))


def load_kernels() -> None:
    """Load all kernels before a fork."""
    _multiply(), _rectify(), _rectified_gradient(), _softmax(), _log_probability(), _sums()


_MATRIX = ArrayType("float32", 2)
_HEAD = ArrayType("float32", 2, contiguous=False)  # columns of the outputs of all heads
_ROWS = ArrayType("float32", 2, writable=True)
_PLACES = ArrayType("uint64", writable=True)
_ACTIONS = ArrayType("int64")
_FLOAT64 = ArrayType("float64", writable=True)


# Eigen's rational approximation of the hyperbolic tangent, which TensorFlow uses, too. Its error is a few units in the
# last place. A call of the C library for each number would take longer than the rest of the network.
_LIMIT, _MINUS_LIMIT = np.float32(7.90531110763549805), np.float32(-7.90531110763549805)
_A1, _A3, _A5, _A7, _A9, _A11, _A13 = (
    np.float32(number)
    for number in (
        4.89352455891786e-03,
        6.37261928875436e-04,
        1.48572235717979e-05,
        5.12229709037114e-08,
        -8.60467152213735e-11,
        2.00018790482477e-13,
        -2.76076847742355e-16,
    )
)
_B0, _B2, _B4, _B6 = (
    np.float32(number)
    for number in (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)
)


def _tanh(values: Any) -> None:
    for i in range(len(values)):
        x = values[i]
        x = _LIMIT if x > _LIMIT else x  # nan stays nan
        x = _MINUS_LIMIT if x < _MINUS_LIMIT else x
        square = x * x
        above = ((((square * _A13 + _A11) * square + _A9) * square + _A7) * square + _A5) * square + _A3
        below = ((square * _B6 + _B4) * square + _B2) * square + _B0
        values[i] = x * (above * square + _A1) / below


tanh = inlined(_tanh, ANY_ORDER)
"""The hyperbolic tangent of float32 [n], in place: `tanh(values)`, for use within a kernel."""


SMALL_PRODUCT = 1_000_000
"""Largest number of multiplications for which OpenBLAS does not copy the matrices first. For a few examples, the copies
take longer than the product: with 8 examples and a kernel of 2592 x 256, 190 us instead of 80.
"""

FEW = 16
"""Largest number of examples for which a product is split into small ones. With more, one product is faster."""


def rectify(y: Array, bias: Array) -> None:
    """Set y [B, outputs] to the larger of y + bias and 0, in place and in one pass: float32, contiguous."""
    _rectify()(y.reshape(-1), bias)


@compiled_once(FLAT, READ, fastmath=ANY_ORDER)
def _rectify(y: Any, bias: Any) -> None:
    width = np.uint64(len(bias))
    for start in range(_ZERO, np.uint64(len(y)), width):
        for j in range(width):
            value = y[start + j] + bias[j]
            y[start + j] = _NULL if value < _NULL else value  # nan stays nan


def rectified_gradient(gradient: Array, outputs: Array) -> None:
    """Set the gradient by the outputs of `rectify` to that by its inputs, in place: float32 [B, outputs]."""
    _rectified_gradient()(gradient.reshape(-1), outputs.reshape(-1))


@compiled_once(FLAT, READ, fastmath=ANY_ORDER)
def _rectified_gradient(gradient: Any, outputs: Any) -> None:
    for i in range(len(gradient)):
        gradient[i] = gradient[i] if outputs[i] > _NULL else _NULL


def product(x: Array, kernel: Array, out: Array) -> None:
    """Write `x @ kernel` to out [B, outputs]: x [B, inputs], kernel [inputs, outputs], all float32."""
    if len(x) > FEW or x.size * kernel.shape[1] <= SMALL_PRODUCT:
        np.matmul(x, kernel, out=out)
        return
    step = max(1, SMALL_PRODUCT // out.size)
    np.matmul(x[:, :step], kernel[:step], out=out)
    further = np.empty_like(out)
    for start in range(step, len(kernel), step):
        part = slice(start, start + step)
        out += np.matmul(x[:, part], kernel[part], out=further)


def product_transposed(x: Array, kernel: Array, out: Array) -> None:
    """Write `x @ kernel.T` to out [B, inputs]: x [B, outputs], kernel [inputs, outputs], all float32."""
    if len(x) > FEW or x.size * len(kernel) <= SMALL_PRODUCT:
        np.matmul(x, kernel.T, out=out)
        return
    step = max(1, SMALL_PRODUCT // x.size)
    for start in range(0, len(kernel), step):
        part = slice(start, start + step)
        np.matmul(x, kernel[part].T, out=out[:, part])


def product_of_relu(x: Array, kernel: Array, out: Array) -> None:
    """Write `x @ kernel` of one example to out [outputs]: x float32 [inputs], kernel [inputs, outputs], finite.

    Rows of the kernel for zeros in x are not read. With a kernel of 2592 x 256 and 70 % zeros, it takes a third of the
    time.
    """
    _multiply()(x, kernel, np.empty(len(x), np.uint64), out)


@compiled_once(READ, _MATRIX, _PLACES, FLAT, fastmath=ANY_ORDER)
def _multiply(x: Any, kernel: Any, rows: Any, out: Any) -> None:
    count = _ZERO
    for i in range(len(x)):
        if x[i] != _NULL:
            rows[count] = i
            count += _ONE
    outputs = len(out)
    for j in range(outputs):
        out[j] = _NULL
    whole = count - count % _FOUR
    for at in range(_ZERO, whole, _FOUR):
        first, second, third, fourth = rows[at], rows[at + _ONE], rows[at + _TWO], rows[at + _THREE]
        a, b, c, d = x[first], x[second], x[third], x[fourth]
        for j in range(outputs):
            out[j] += (a * kernel[first, j] + b * kernel[second, j]) + (c * kernel[third, j] + d * kernel[fourth, j])
    for at in range(whole, count):
        row = rows[at]
        for j in range(outputs):
            out[j] += x[row] * kernel[row, j]


def softmax_gradient(
    logits: Array, a_t: npt.NDArray[Any], by_log_probability: Array, by_entropy: Array
) -> tuple[Array, Array, Array]:
    """Compute a loss's derivative by the logits. The loss depends on log pi(a_t) and the entropy of a softmax pi.

    `logits` float32 [B, A]; `a_t` integers [B]; the loss's derivatives by log pi(a_t) and by the entropy, float32 [B].
    Returns the derivative, float32 [B, A]; log pi(a_t) and the entropy, float32 [B] each. Raises IndexError if an
    action is not from 0 to A - 1.
    """
    logits = np.asarray(logits, np.float32)
    by_logits = np.empty(logits.shape, np.float32)
    log_probability, entropy = np.empty((2, len(logits)), np.float32)
    actions = _checked(a_t, logits)
    results = by_logits, log_probability, entropy
    if _softmax()(logits, actions, by_log_probability, by_entropy, *results) < len(logits):
        raise IndexError("softmax gradient for an action that is not from 0 to A - 1")
    return results


def softmax_log_probability(logits: Array, a_t: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Compute log pi(a_t), float64 [N]. `logits` float32 [N, A]; `a_t` integers [N].

    Raises IndexError if an action is not from 0 to A - 1.
    """
    logits = np.asarray(logits, np.float32)
    found = np.empty(len(logits))
    if _log_probability()(logits, _checked(a_t, logits), found) < len(logits):
        raise IndexError("log-probability of an action that is not from 0 to A - 1")
    return found


def _checked(a_t: npt.NDArray[Any], logits: Array) -> npt.NDArray[np.int64]:
    if a_t.shape != logits.shape[:1]:
        raise ValueError(f"actions of shape ({len(logits)},) are needed, one for each row, not {a_t.shape}")
    return np.ascontiguousarray(a_t, np.int64)


@compiled_once(_HEAD, _ACTIONS, READ, READ, _ROWS, FLAT, FLAT, returns=SIGNED)
def _softmax(
    logits: Any, actions: Any, by_log: Any, by_entropy: Any, by_logits: Any, log_probabilities: Any, entropies: Any
) -> Any:
    """Return the number of rows before the first whose action is not from 0 to A - 1."""
    count, choices = logits.shape
    for row in range(count):
        largest = logits[row, 0]
        for j in range(1, choices):
            if not logits[row, j] <= largest:  # also true for nan, and then all results are nan
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
            return row
        log_probabilities[row], entropies[row] = logits[row, taken] - largest - log_total, entropy
        # The derivative of log pi(a) by logit j is [j = a] - pi_j. That of the entropy is -pi_j * (log pi_j + entropy).
        for j in range(choices):
            surplus = logits[row, j] - largest - log_total + entropy
            by_logits[row, j] *= -(surplus * by_entropy[row] + by_log[row])
        by_logits[row, taken] += by_log[row]
    return count


@compiled_once(_HEAD, _ACTIONS, _FLOAT64, returns=SIGNED)
def _log_probability(logits: Any, actions: Any, found: Any) -> Any:
    """Return the number of rows before the first whose action is not from 0 to A - 1."""
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
            return row
        found[row] = np.float64(logits[row, actions[row]]) - np.float64(largest) - np.log(total)
    return count


def discounted_sums(terms: Array, decays: Array) -> None:
    """Compute s_t = term_t + decay_t * s_{t+1} over a rollout, in place in `terms`. Both: contiguous float32 [T, N]."""
    _sums()(terms.reshape(-1), decays.reshape(-1), terms.shape[1])


@compiled_once(FLAT, READ, SIGNED)
def _sums(terms: Any, decays: Any, width: Any) -> None:
    for i in range(len(terms) - width - 1, -1, -1):
        terms[i] += decays[i] * terms[i + width]
