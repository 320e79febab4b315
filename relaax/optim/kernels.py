"""Updates of a flat vector in the host's memory, one pass over it each.

Each writes the new numbers a second time, to `copy`, where a worker reads them: a pass that only copies them would take
a third as long again. TensorFlow's kernels take several passes. If the caches are cold, as between two pushes,
memory is what an update costs: one of RMSProp on 678 k numbers takes 0.34 ms with its copy; the update alone took
0.28 ms, and 0.60 ms by TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from relaax import machine_code
from relaax.machine_code import FLAT, READ, types

Kernel = Callable[..., None]


@cache
def compiled(function: Kernel, vectors: int, numbers: int) -> Kernel:
    """Machine code for a function of so many vectors that it may change, a gradient, and so many numbers."""
    return machine_code.compiled(function, *[FLAT] * vectors, READ, *[types.float32] * numbers)


def fused(function: Kernel) -> Kernel:
    """Compile one of `FUSED`: it takes parameters, its slots, a copy, a gradient, a learning rate and its constants."""
    rule = FUSED[function.__name__]
    return compiled(function, 2 + rule.slots, 1 + rule.numbers)


def rms_prop(theta: Any, mean_square: Any, copy: Any, gradient: Any, rate: Any, share: Any, epsilon: Any) -> None:
    """`share` is 1 − α of `relaax.optim.optimizers.RMSProp`."""
    for i in range(len(gradient)):
        mean_square[i] += (gradient[i] * gradient[i] - mean_square[i]) * share
        theta[i] -= rate * gradient[i] / np.sqrt(mean_square[i] + epsilon)
        copy[i] = theta[i]


def centered_rms_prop(
    theta: Any, mean_square: Any, mean: Any, copy: Any, gradient: Any, rate: Any, share: Any, epsilon: Any
) -> None:
    """`share` is 1 − α of `relaax.optim.optimizers.RMSProp`. Rounding makes no variance negative."""
    for i in range(len(gradient)):
        mean_square[i] += (gradient[i] * gradient[i] - mean_square[i]) * share
        mean[i] += (gradient[i] - mean[i]) * share
        variance = max(mean_square[i] - mean[i] * mean[i], np.float32(0.0))
        theta[i] -= rate * gradient[i] / np.sqrt(variance + epsilon)
        copy[i] = theta[i]


def momentum(theta: Any, mean: Any, copy: Any, gradient: Any, rate: Any, share: Any) -> None:
    """`share` is 1 − α of `relaax.optim.optimizers.Momentum`."""
    for i in range(len(gradient)):
        mean[i] += (gradient[i] - mean[i]) * share
        theta[i] -= rate * mean[i]
        copy[i] = theta[i]


def ada_grad(theta: Any, square_sum: Any, copy: Any, gradient: Any, rate: Any, epsilon: Any) -> None:
    """See `relaax.optim.optimizers.AdaGrad`."""
    for i in range(len(gradient)):
        square_sum[i] += gradient[i] * gradient[i]
        theta[i] -= rate * gradient[i] / (np.sqrt(square_sum[i]) + epsilon)
        copy[i] = theta[i]


def adam(
    theta: Any,
    mean: Any,
    mean_square: Any,
    copy: Any,
    gradient: Any,
    rate: Any,
    share: Any,
    square_share: Any,
    epsilon: Any,
) -> None:
    """`share` and `square_share` are 1 − β1 and 1 − β2 of `Adam`; `rate` corrects both biases."""
    for i in range(len(gradient)):
        mean[i] += (gradient[i] - mean[i]) * share
        mean_square[i] += (gradient[i] * gradient[i] - mean_square[i]) * square_share
        theta[i] -= rate * mean[i] / (np.sqrt(mean_square[i]) + epsilon)
        copy[i] = theta[i]


def add(theta: Any, copy: Any, gradient: Any) -> None:
    """See `relaax.optim.optimizers.Add`."""
    for i in range(len(gradient)):
        theta[i] += gradient[i]
        copy[i] = theta[i]


class Rule(NamedTuple):
    """An update: how many slots it has beside the parameters, and how many constants it takes beside the rate."""

    function: Kernel
    slots: int
    numbers: int


FUSED = {
    "rms_prop": Rule(rms_prop, 1, 2),
    "centered_rms_prop": Rule(centered_rms_prop, 2, 2),
    "momentum": Rule(momentum, 1, 1),
    "ada_grad": Rule(ada_grad, 1, 1),
}
"""Updates whose state is slots alone, by name."""
