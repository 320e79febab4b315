"""Optimizers at work in the host's memory: as those of `relaax.optim.tensorflow_optimizers`, several times faster."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from relaax.optim import kernels
from relaax.optim.host_vector import HostVector
from relaax.optim.optimizers import AdaGrad, Adam, Add, Momentum, OptimizerSpec, RMSProp
from relaax.optim.tensorflow_optimizers import AdamSlots, Optimizer, Slotted
from relaax.optim.vector import FlatVector


def create(spec: OptimizerSpec, size: int) -> Optimizer[HostVector]:
    """Return the live optimizer of a specification; its kernel is compiled now, which takes some tenths of a second.

    A specification that is none of RELAAX's makes its own, which must get by with what every `Vector` can.
    """
    match spec:
        case RMSProp(centered=True):
            slots, kernel = ("mean_square", "mean"), kernels.centered_rms_prop
            return Fused(size, slots, kernel, 1.0 - spec.decay, spec.epsilon, optional="mean")
        case RMSProp():
            return Fused(size, ("mean_square",), kernels.rms_prop, 1.0 - spec.decay, spec.epsilon, optional="mean")
        case Momentum():
            return Fused(size, ("momentum",), kernels.momentum, 1.0 - spec.momentum)
        case AdaGrad():
            return Fused(size, ("square_sum",), kernels.ada_grad, spec.epsilon)
        case Adam():
            return _Adam(size, spec)
        case Add():
            return _Add(size)
    return spec.create(size)


class Fused(Slotted[HostVector]):
    """An update by one pass over the parameters, one or two slots and the gradient, with some constants.

    `function`: of `relaax.optim.kernels`; its name and `numbers` say everything about the update. The slots are in its
    order. `optional`: see `Slotted`.
    """

    def __init__(
        self, size: int, slots: Sequence[str], function: kernels.Kernel, *numbers: float, optional: str | None = None
    ) -> None:
        super().__init__(HostVector.zeros, size, *slots, optional=optional)
        self.function = function.__name__
        self.numbers = tuple(np.float32(number) for number in numbers)
        self._kernel = kernels.fused(function)

    def apply(self, parameters: HostVector, gradient: FlatVector, learning_rate: float) -> None:
        slots = [vector.open() for vector in self.vectors.values()]
        values, copy = parameters.open_twice()
        self._kernel(values, *slots, copy, gradient, np.float32(learning_rate), *self.numbers)


class _Adam(AdamSlots[HostVector]):
    def __init__(self, size: int, spec: Adam) -> None:
        super().__init__(HostVector.zeros, size)
        self._spec = spec
        self._numbers = np.float32(1.0 - spec.beta1), np.float32(1.0 - spec.beta2), np.float32(spec.epsilon)
        self._kernel = kernels.compiled(kernels.adam, 4, 4)

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
        self._kernel = kernels.compiled(kernels.add, 2, 0)

    def apply(self, parameters: HostVector, gradient: FlatVector, learning_rate: float) -> None:
        self._kernel(*parameters.open_twice(), gradient)
