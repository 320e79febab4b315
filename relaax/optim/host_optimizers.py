"""Optimizers at work in the host's memory, by kernels of one pass over it each.

Each writes the new numbers a second time, to `copy`, where a worker reads them: a pass that only copies them would take
a third as long again. TensorFlow's kernels take several passes. If the caches are cold, as between two pushes,
memory is what an update costs: one of RMSProp on 678 k numbers takes 0.34 ms with its copy; the update alone took
0.28 ms, and 0.60 ms by TensorFlow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from relaax import machine_code
from relaax.machine_code import FLAT, READ, types
from relaax.optim.optimizers import AdaGrad, Adam, AdamSlots, Add, Momentum, Optimizer, OptimizerSpec, RMSProp, Slotted
from relaax.optim.vector import FlatVector, HostVector

Kernel = Callable[..., None]


def create(spec: OptimizerSpec, size: int) -> Optimizer[HostVector]:
    """Return the live optimizer of a specification; its kernel is compiled now, which takes some tenths of a second.

    A specification that is none of RELAAX's makes its own, which must get by with what every `Vector` can.
    """
    match spec:
        case RMSProp():
            kernel = centered_rms_prop if spec.centered else rms_prop
            return Fused(size, kernel, 1.0 - spec.decay, spec.epsilon, optional="mean")
        case Momentum():
            return Fused(size, momentum, 1.0 - spec.momentum)
        case AdaGrad():
            return Fused(size, ada_grad, spec.epsilon)
        case Adam():
            return _Adam(size, spec)
        case Add():
            return _Add(size)
    return spec.create(size)


class Fused(Slotted[HostVector]):
    """An update by one pass over the parameters, one or two slots and the gradient, with some constants.

    `kernel`: one of `FUSED`; its name, `function`, and `numbers` say everything about the update. `optional`: see
    `Slotted`.
    """

    def __init__(self, size: int, kernel: Kernel, *numbers: float, optional: str | None = None) -> None:
        self.function = kernel.__name__
        super().__init__(HostVector.zeros, size, *FUSED[self.function].slots, optional=optional)
        self.numbers = tuple(np.float32(number) for number in numbers)
        self._kernel = FUSED[self.function].compiled()

    def apply(self, parameters: HostVector, gradient: FlatVector, learning_rate: float) -> None:
        slots = [vector.open() for vector in self.vectors.values()]
        values, copy = parameters.open_twice()
        self._kernel(values, *slots, copy, gradient, np.float32(learning_rate), *self.numbers)


class _Adam(AdamSlots[HostVector]):
    def __init__(self, size: int, spec: Adam) -> None:
        super().__init__(HostVector.zeros, size)
        self._spec = spec
        self._numbers = np.float32(1.0 - spec.beta1), np.float32(1.0 - spec.beta2), np.float32(spec.epsilon)
        self._kernel = _compiled(adam, 4, 4)

    def apply(self, parameters: HostVector, gradient: FlatVector, learning_rate: float) -> None:
        self.updates += 1
        beta1, beta2 = self._spec.beta1, self._spec.beta2
        rate = learning_rate * math.sqrt(1.0 - beta2**self.updates) / (1.0 - beta1**self.updates)
        mean, mean_square = (self.vectors[name].open() for name in ("mean", "mean_square"))
        values, copy = parameters.open_twice()
        self._kernel(values, mean, mean_square, copy, gradient, np.float32(rate), *self._numbers)


class _Add(Slotted[HostVector]):
    def __init__(self, size: int) -> None:
        super().__init__(HostVector.zeros, size)
        self._kernel = _compiled(add, 2, 0)

    def apply(self, parameters: HostVector, gradient: FlatVector, learning_rate: float) -> None:
        self._kernel(*parameters.open_twice(), gradient)


@cache
def _compiled(function: Kernel, vectors: int, numbers: int) -> Kernel:
    """Machine code for a function of so many vectors that it may change, a gradient, and so many numbers."""
    return machine_code.compiled(function, *[FLAT] * vectors, READ, *[types.float32] * numbers)


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
    """An update whose state is slots alone: their names, and how many constants it takes beside the learning rate."""

    function: Kernel
    slots: tuple[str, ...]
    numbers: int

    def compiled(self) -> Kernel:
        """Machine code, of parameters, slots, a copy, a gradient, a learning rate and the constants."""
        return _compiled(self.function, 2 + len(self.slots), 1 + self.numbers)


FUSED = {
    "rms_prop": Rule(rms_prop, ("mean_square",), 2),
    "centered_rms_prop": Rule(centered_rms_prop, ("mean_square", "mean"), 2),
    "momentum": Rule(momentum, ("momentum",), 1),
    "ada_grad": Rule(ada_grad, ("square_sum",), 1),
}
"""By name."""
