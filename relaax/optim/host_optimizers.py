"""Optimizers in the host's memory, with kernels that pass over the memory once.

Each kernel also writes the new parameters to `copy`, which workers read. A separate pass for the copy would add a third
to the time. TensorFlow's kernels need several passes. Caches become cold between two pushes, so the speed of memory
determines the time of an update. RMSProp on 678,000 numbers takes 0.34 ms with the copy and 0.28 ms without it;
TensorFlow takes 0.60 ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from relaax.machine_code import FLAT, READ, REAL, Kernel, compiled_once
from relaax.optim.learning_rates import RateFactors, ranges_of
from relaax.optim.optimizers import (
    AdaGrad,
    Adam,
    AdamSlots,
    Add,
    Momentum,
    Optimizer,
    OptimizerSpec,
    RMSProp,
    Slotted,
    scaled,
)
from relaax.optim.vector import FlatVector, HostVector


def create(spec: OptimizerSpec, size: int, factors: RateFactors = ()) -> Optimizer[HostVector]:
    """Return an optimizer for a specification.

    `factors`: of the learning rate, by range. A specification from outside RELAAX makes its own optimizer, which must
    work with any `Vector`.
    """
    match spec:
        case RMSProp():
            function = "centered_rms_prop" if spec.centered else "rms_prop"
            return Fused(size, function, 1.0 - spec.decay, spec.epsilon, optional="mean", factors=factors)
        case Momentum():
            return Fused(size, "momentum", 1.0 - spec.momentum, factors=factors)
        case AdaGrad():
            return Fused(size, "ada_grad", spec.epsilon, factors=factors)
        case Adam():
            return _Adam(size, spec, factors)
        case Add():
            return _Add(size, factors)
    return scaled(spec.create(size), factors)


class Fused(Slotted[HostVector]):
    """An optimizer that updates parameters and one or two slots in one pass.

    function: the name of a kernel of `FUSED`, which defines the update with its constants (`numbers`).
    optional: see `Slotted`. factors: of the learning rate, by range.
    """

    def __init__(
        self, size: int, function: str, *numbers: float, optional: str | None = None, factors: RateFactors = ()
    ) -> None:
        self.function = function
        super().__init__(HostVector.zeros, size, *FUSED[function].slots, optional=optional)
        self.numbers = tuple(np.float32(number) for number in numbers)
        self._kernel = _by_range(FUSED[function].compiled(), factors)

    def apply(self, parameters: HostVector, gradient: FlatVector, learning_rate: float) -> None:
        slots = [vector.writable() for vector in self.vectors.values()]
        values, copy = parameters.writable_with_copy()
        self._kernel((values, *slots, copy, gradient), learning_rate, *self.numbers)


class _Adam(AdamSlots[HostVector]):
    def __init__(self, size: int, spec: Adam, factors: RateFactors) -> None:
        super().__init__(HostVector.zeros, size)
        self._spec = spec
        self._numbers = np.float32(1.0 - spec.beta1), np.float32(1.0 - spec.beta2), np.float32(spec.epsilon)
        self._kernel = _by_range(adam(), factors)

    def apply(self, parameters: HostVector, gradient: FlatVector, learning_rate: float) -> None:
        self.updates += 1
        beta1, beta2 = self._spec.beta1, self._spec.beta2
        rate = learning_rate * math.sqrt(1.0 - beta2**self.updates) / (1.0 - beta1**self.updates)
        mean, mean_square = (self.vectors[name].writable() for name in ("mean", "mean_square"))
        values, copy = parameters.writable_with_copy()
        self._kernel((values, mean, mean_square, copy, gradient), rate, *self._numbers)


class _Add(Slotted[HostVector]):
    def __init__(self, size: int, factors: RateFactors) -> None:
        super().__init__(HostVector.zeros, size)
        self._kernel = _by_range(add(), factors)

    def apply(self, parameters: HostVector, gradient: FlatVector, learning_rate: float) -> None:
        self._kernel((*parameters.writable_with_copy(), gradient), 1.0)


def _by_range(kernel: Kernel, factors: RateFactors) -> Callable[..., None]:
    """Return a function of a kernel's vectors, its learning rate and constants, which scales the rate by range."""
    ranges = list(ranges_of(factors))

    def update(vectors: Sequence[FlatVector], rate: float, *numbers: np.float32) -> None:
        if not ranges:
            kernel(*vectors, np.float32(rate), *numbers)
        for part, factor in ranges:
            kernel(*(vector[part] for vector in vectors), np.float32(rate * factor), *numbers)

    return update


def _compiled(vectors: int, numbers: int) -> Callable[[Kernel], Callable[[], Kernel]]:
    """Decorate a kernel with `vectors` writable vectors, a gradient, and `numbers` constants."""
    return compiled_once(*[FLAT] * vectors, READ, *[REAL] * numbers)


@_compiled(3, 3)
def rms_prop(theta: Any, mean_square: Any, copy: Any, gradient: Any, rate: Any, share: Any, epsilon: Any) -> None:
    """Update by `relaax.optim.optimizers.RMSProp`. `share`: its 1 − α."""
    for i in range(len(gradient)):
        mean_square[i] += (gradient[i] * gradient[i] - mean_square[i]) * share
        theta[i] -= rate * gradient[i] / np.sqrt(mean_square[i] + epsilon)
        copy[i] = theta[i]


@_compiled(4, 3)
def centered_rms_prop(
    theta: Any, mean_square: Any, mean: Any, copy: Any, gradient: Any, rate: Any, share: Any, epsilon: Any
) -> None:
    """Update by centered RMSProp. `share`: its 1 − α. A variance that rounding makes negative counts as 0."""
    for i in range(len(gradient)):
        mean_square[i] += (gradient[i] * gradient[i] - mean_square[i]) * share
        mean[i] += (gradient[i] - mean[i]) * share
        variance = max(mean_square[i] - mean[i] * mean[i], np.float32(0.0))
        theta[i] -= rate * gradient[i] / np.sqrt(variance + epsilon)
        copy[i] = theta[i]


@_compiled(3, 2)
def momentum(theta: Any, mean: Any, copy: Any, gradient: Any, rate: Any, share: Any) -> None:
    """Update by `relaax.optim.optimizers.Momentum`. `share`: its 1 − α."""
    for i in range(len(gradient)):
        mean[i] += (gradient[i] - mean[i]) * share
        theta[i] -= rate * mean[i]
        copy[i] = theta[i]


@_compiled(3, 2)
def ada_grad(theta: Any, square_sum: Any, copy: Any, gradient: Any, rate: Any, epsilon: Any) -> None:
    """Update by `relaax.optim.optimizers.AdaGrad`."""
    for i in range(len(gradient)):
        square_sum[i] += gradient[i] * gradient[i]
        theta[i] -= rate * gradient[i] / (np.sqrt(square_sum[i]) + epsilon)
        copy[i] = theta[i]


@_compiled(4, 4)
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
    """Update by Adam. `share`, `square_share`: 1 − β1 and 1 − β2. `rate`: includes the correction of both biases."""
    for i in range(len(gradient)):
        mean[i] += (gradient[i] - mean[i]) * share
        mean_square[i] += (gradient[i] * gradient[i] - mean_square[i]) * square_share
        theta[i] -= rate * mean[i] / (np.sqrt(mean_square[i]) + epsilon)
        copy[i] = theta[i]


@_compiled(2, 1)
def add(theta: Any, copy: Any, gradient: Any, rate: Any) -> None:
    """Update by `relaax.optim.optimizers.Add`. `rate`: the factor of the range."""
    for i in range(len(gradient)):
        theta[i] += rate * gradient[i]
        copy[i] = theta[i]


class Rule(NamedTuple):
    """A kernel with only slots as state.

    compiled: returns machine code. Arguments: parameters, slots, copy, gradient, learning rate, constants.
    numbers: the number of its constants, without the learning rate.
    """

    compiled: Callable[[], Kernel]
    slots: tuple[str, ...]
    numbers: int


FUSED = {
    "rms_prop": Rule(rms_prop, ("mean_square",), 2),
    "centered_rms_prop": Rule(centered_rms_prop, ("mean_square", "mean"), 2),
    "momentum": Rule(momentum, ("momentum",), 1),
    "ada_grad": Rule(ada_grad, ("square_sum",), 1),
}
"""Kernels by name."""
