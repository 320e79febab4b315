"""Optimizers at work: TensorFlow's fused kernels on one flat vector, and the slots that they keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from relaax.tf.flat_variable import FlatVariable, FlatVector

Slots = dict[str, npt.NDArray[Any]]


class Optimizer(ABC):
    """A live optimizer of a vector of `size` float32 elements. Not thread-safe."""

    def __init__(self, size: int) -> None:
        self.size = size

    @abstractmethod
    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        """Update `parameters` in place along `gradient`, float32 of shape [size]."""

    @abstractmethod
    def slots(self) -> Slots:
        """The optimizer's state as arrays that never change; `restore` takes them back."""

    @abstractmethod
    def restore(self, slots: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from saved slots. Raises ValueError where names or shapes are not this optimizer's."""


class _Slotted(Optimizer):
    """An optimizer whose state is so many vectors, which start at zero."""

    def __init__(self, size: int, *names: str) -> None:
        super().__init__(size)
        self._vectors = {name: FlatVariable.zeros(size) for name in names}

    def slots(self) -> Slots:
        return {name: vector.snapshot() for name, vector in self._vectors.items()}

    def restore(self, slots: Mapping[str, npt.NDArray[Any]]) -> None:
        self._check(slots, dict.fromkeys(self._vectors, (self.size,)))
        for name, vector in self._vectors.items():
            vector.assign(slots[name])

    @staticmethod
    def _check(slots: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, tuple[int, ...]]) -> None:
        found = {name: tuple(array.shape) for name, array in slots.items()}
        if found != expected:
            raise ValueError(f"the optimizer has the slots {expected}, not {found}")


class LiveRMSProp(_Slotted):
    """See `relaax.tf.optimizers.RMSProp`."""

    def __init__(self, size: int, decay: float, epsilon: float) -> None:
        super().__init__(size, "mean_square")
        self._decay, self._epsilon = decay, epsilon
        # The kernel keeps the last step here; without momentum it is never read, so it is no state.
        self._last_step = FlatVariable.zeros(size)

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        tf.raw_ops.ResourceApplyRMSProp(
            var=parameters.handle,
            ms=self._vectors["mean_square"].handle,
            mom=self._last_step.handle,
            lr=learning_rate,
            rho=self._decay,
            momentum=0.0,
            epsilon=self._epsilon,
            grad=gradient,
            use_locking=True,
        )


class LiveMomentum(_Slotted):
    """See `relaax.tf.optimizers.Momentum`. The slot is m, which means the same under another α."""

    def __init__(self, size: int, momentum: float) -> None:
        super().__init__(size, "momentum")
        self._momentum = momentum

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=parameters.handle,
            accum=self._vectors["momentum"].handle,
            lr=learning_rate,
            grad=gradient * np.float32(1.0 - self._momentum),  # the kernel has m ← α·m + Δθ
            momentum=self._momentum,
            use_locking=True,
        )


class LiveAdaGrad(_Slotted):
    """See `relaax.tf.optimizers.AdaGrad`."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__(size, "square_sum")
        self._epsilon = epsilon

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        tf.raw_ops.ResourceApplyAdagradV2(
            var=parameters.handle,
            accum=self._vectors["square_sum"].handle,
            lr=learning_rate,
            epsilon=self._epsilon,
            grad=gradient,
            use_locking=True,
        )


class LiveAdam(_Slotted):
    """See `relaax.tf.optimizers.Adam`."""

    def __init__(self, size: int, beta1: float, beta2: float, epsilon: float) -> None:
        super().__init__(size, "mean", "mean_square")
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
        self._updates = 0

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        self._updates += 1
        tf.raw_ops.ResourceApplyAdam(
            var=parameters.handle,
            m=self._vectors["mean"].handle,
            v=self._vectors["mean_square"].handle,
            beta1_power=self._beta1**self._updates,
            beta2_power=self._beta2**self._updates,
            lr=learning_rate,
            beta1=self._beta1,
            beta2=self._beta2,
            epsilon=self._epsilon,
            grad=gradient,
            use_locking=True,
        )

    def slots(self) -> Slots:
        return {**super().slots(), "updates": np.array([self._updates], np.int64)}

    def restore(self, slots: Mapping[str, npt.NDArray[Any]]) -> None:
        vectors = {name: array for name, array in slots.items() if name != "updates"}
        self._check(slots, {**dict.fromkeys(self._vectors, (self.size,)), "updates": (1,)})
        super().restore(vectors)
        self._updates = int(slots["updates"][0])


class LiveAdd(_Slotted):
    """See `relaax.tf.optimizers.Add`."""

    def __init__(self, size: int) -> None:
        super().__init__(size)

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        tf.raw_ops.AssignAddVariableOp(resource=parameters.handle, value=gradient)
