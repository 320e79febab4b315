"""Optimizers at work in the host's memory: as those of `relaax.tf.live_optimizers`, several times faster."""

from __future__ import annotations

import math

import numpy as np

from relaax.host import kernels
from relaax.host.vector import HostVector
from relaax.tf.live_optimizers import AdamSlots, Optimizer, Slotted
from relaax.tf.optimizers import AdaGrad, Adam, Add, Momentum, OptimizerSpec, RMSProp
from relaax.tf.vector import FlatVector


def create(spec: OptimizerSpec, size: int) -> Optimizer[HostVector]:
    """The live optimizer of a specification; its kernel is compiled now, which takes some tenths of a second.

    A specification that is none of RELAAX's makes its own, which must get by with what every `Vector` can.
    """
    match spec:
        case RMSProp():
            return _RMSProp(size, spec)
        case Momentum():
            return _Momentum(size, spec)
        case AdaGrad():
            return _AdaGrad(size, spec)
        case Adam():
            return _Adam(size, spec)
        case Add():
            return _Add(size)
    return spec.create(size)


class _RMSProp(Slotted[HostVector]):
    def __init__(self, size: int, spec: RMSProp) -> None:
        super().__init__(HostVector.zeros, size, "mean_square")
        self._numbers = np.float32(1.0 - spec.decay), np.float32(spec.epsilon)
        self._kernel = kernels.compiled(kernels.rms_prop, 2, 3)

    def apply(self, parameters: HostVector, gradient: FlatVector, learning_rate: float) -> None:
        mean_square = self.vectors["mean_square"].open()
        self._kernel(parameters.open(), mean_square, gradient, np.float32(learning_rate), *self._numbers)


class _Momentum(Slotted[HostVector]):
    def __init__(self, size: int, spec: Momentum) -> None:
        super().__init__(HostVector.zeros, size, "momentum")
        self._share = np.float32(1.0 - spec.momentum)
        self._kernel = kernels.compiled(kernels.momentum, 2, 2)

    def apply(self, parameters: HostVector, gradient: FlatVector, learning_rate: float) -> None:
        mean = self.vectors["momentum"].open()
        self._kernel(parameters.open(), mean, gradient, np.float32(learning_rate), self._share)


class _AdaGrad(Slotted[HostVector]):
    def __init__(self, size: int, spec: AdaGrad) -> None:
        super().__init__(HostVector.zeros, size, "square_sum")
        self._epsilon = np.float32(spec.epsilon)
        self._kernel = kernels.compiled(kernels.ada_grad, 2, 2)

    def apply(self, parameters: HostVector, gradient: FlatVector, learning_rate: float) -> None:
        square_sum = self.vectors["square_sum"].open()
        self._kernel(parameters.open(), square_sum, gradient, np.float32(learning_rate), self._epsilon)


class _Adam(AdamSlots[HostVector]):
    def __init__(self, size: int, spec: Adam) -> None:
        super().__init__(HostVector.zeros, size)
        self._spec = spec
        self._numbers = np.float32(1.0 - spec.beta1), np.float32(1.0 - spec.beta2), np.float32(spec.epsilon)
        self._kernel = kernels.compiled(kernels.adam, 3, 4)

    def apply(self, parameters: HostVector, gradient: FlatVector, learning_rate: float) -> None:
        self.updates += 1
        beta1, beta2 = self._spec.beta1, self._spec.beta2
        rate = learning_rate * math.sqrt(1.0 - beta2**self.updates) / (1.0 - beta1**self.updates)
        mean, mean_square = (self.vectors[name].open() for name in ("mean", "mean_square"))
        self._kernel(parameters.open(), mean, mean_square, gradient, np.float32(rate), *self._numbers)


class _Add(Slotted[HostVector]):
    def __init__(self, size: int) -> None:
        super().__init__(HostVector.zeros, size)
        self._kernel = kernels.compiled(kernels.add, 1, 0)

    def apply(self, parameters: HostVector, gradient: FlatVector, learning_rate: float) -> None:
        self._kernel(parameters.open(), gradient)
