"""Optimizers at work: what they have in common, and TensorFlow's fused kernels on whatever device computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from relaax.nn.tensorflow_loading import tf
from relaax.optim.flat_variable import FlatVariable
from relaax.optim.vector import FlatVector, Vector

Slots = dict[str, npt.NDArray[Any]]
V = TypeVar("V", bound=Vector)


class Optimizer(ABC, Generic[V]):
    """A live optimizer of a vector of `size` float32 elements. Not thread-safe."""

    def __init__(self, size: int) -> None:
        self.size = size

    @abstractmethod
    def apply(self, parameters: V, gradient: FlatVector, learning_rate: float) -> None:
        """Update `parameters` in place along `gradient`, float32 of shape [size]."""

    @abstractmethod
    def slots(self) -> Slots:
        """Return the optimizer's state, which `restore` takes back: to be copied before the next `apply`."""

    @abstractmethod
    def restore(self, slots: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from saved slots. Raises ValueError if names or shapes are not this optimizer's."""


class Slotted(Optimizer[V]):
    """An optimizer whose state is so many vectors, which start at zero.

    `optional`: a slot that `restore` starts at zero where a saved state lacks it, and drops where only that has it.
    """

    def __init__(self, zeros: Callable[[int], V], size: int, *names: str, optional: str | None = None) -> None:
        super().__init__(size)
        self.vectors = {name: zeros(size) for name in names}
        self._optional = optional

    def slots(self) -> Slots:
        return {name: vector.shared() for name, vector in self.vectors.items()}

    def restore(self, slots: Mapping[str, npt.NDArray[Any]]) -> None:
        slots = self._adapted(slots)
        self._check(slots, dict.fromkeys(self.vectors, (self.size,)))
        for name, vector in self.vectors.items():
            vector.assign(slots[name])

    def _adapted(self, slots: Mapping[str, npt.NDArray[Any]]) -> Mapping[str, npt.NDArray[Any]]:
        """Return saved slots with the optional one if this optimizer has it, else without."""
        if self._optional is None or not slots:
            return slots
        if self._optional in self.vectors:
            return {self._optional: np.zeros(self.size, np.float32), **slots}
        return {name: array for name, array in slots.items() if name != self._optional}

    @staticmethod
    def _check(slots: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, tuple[int, ...]]) -> None:
        found = {name: tuple(array.shape) for name, array in slots.items()}
        if found != expected:
            raise ValueError(f"the optimizer has the slots {expected}, not {found}")


class AdamSlots(Slotted[V]):
    """What Adam keeps: two vectors, and how often it was applied."""

    def __init__(self, zeros: Callable[[int], V], size: int) -> None:
        super().__init__(zeros, size, "mean", "mean_square")
        self.updates = 0

    def slots(self) -> Slots:
        return {**super().slots(), "updates": np.array([self.updates], np.int64)}

    def restore(self, slots: Mapping[str, npt.NDArray[Any]]) -> None:
        vectors = {name: array for name, array in slots.items() if name != "updates"}
        self._check(slots, {**dict.fromkeys(self.vectors, (self.size,)), "updates": (1,)})
        super().restore(vectors)
        self.updates = int(slots["updates"][0])


class LiveRMSProp(Slotted[FlatVariable]):
    """See `relaax.optim.optimizers.RMSProp`."""

    def __init__(self, size: int, decay: float, epsilon: float) -> None:
        super().__init__(FlatVariable.zeros, size, "mean_square", optional="mean")
        self._decay, self._epsilon = decay, epsilon
        # The kernel keeps the last step here; without momentum it is never read, so it is no state.
        self._last_step = FlatVariable.zeros(size)

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        tf.raw_ops.ResourceApplyRMSProp(
            var=parameters.handle,
            ms=self.vectors["mean_square"].handle,
            mom=self._last_step.handle,
            lr=learning_rate,
            rho=self._decay,
            momentum=0.0,
            epsilon=self._epsilon,
            grad=gradient,
            use_locking=True,
        )


class LiveCenteredRMSProp(Slotted[FlatVariable]):
    """See `relaax.optim.optimizers.RMSProp`, `centered`.

    Not by TensorFlow's kernel: where rounding makes a variance negative, that takes its root, and parameters are NaN.
    """

    def __init__(self, size: int, decay: float, epsilon: float) -> None:
        super().__init__(FlatVariable.zeros, size, "mean_square", "mean", optional="mean")
        self._share, self._epsilon = np.float32(1.0 - decay), np.float32(epsilon)

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        gradient = tf.convert_to_tensor(gradient)
        mean_square = self._towards("mean_square", gradient * gradient)
        mean = self._towards("mean", gradient)
        variance = tf.maximum(mean_square - mean * mean, 0.0)
        step = np.float32(learning_rate) * gradient / tf.sqrt(variance + self._epsilon)
        tf.raw_ops.AssignSubVariableOp(resource=parameters.handle, value=step)

    def _towards(self, name: str, values: tf.Tensor) -> tf.Tensor:
        """Move a slot to these values by its share, and return it, float32 [size]."""
        handle = self.vectors[name].handle
        before = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        after = before + (values - before) * self._share
        tf.raw_ops.AssignVariableOp(resource=handle, value=after)
        return after


class LiveMomentum(Slotted[FlatVariable]):
    """See `relaax.optim.optimizers.Momentum`. The slot is m, which means the same under another α."""

    def __init__(self, size: int, momentum: float) -> None:
        super().__init__(FlatVariable.zeros, size, "momentum")
        self._momentum = momentum

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=parameters.handle,
            accum=self.vectors["momentum"].handle,
            lr=learning_rate,
            grad=gradient * np.float32(1.0 - self._momentum),  # the kernel has m ← α·m + Δθ
            momentum=self._momentum,
            use_locking=True,
        )


class LiveAdaGrad(Slotted[FlatVariable]):
    """See `relaax.optim.optimizers.AdaGrad`."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__(FlatVariable.zeros, size, "square_sum")
        self._epsilon = epsilon

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        tf.raw_ops.ResourceApplyAdagradV2(
            var=parameters.handle,
            accum=self.vectors["square_sum"].handle,
            lr=learning_rate,
            epsilon=self._epsilon,
            grad=gradient,
            use_locking=True,
        )


class LiveAdam(AdamSlots[FlatVariable]):
    """See `relaax.optim.optimizers.Adam`."""

    def __init__(self, size: int, beta1: float, beta2: float, epsilon: float) -> None:
        super().__init__(FlatVariable.zeros, size)
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        self.updates += 1
        tf.raw_ops.ResourceApplyAdam(
            var=parameters.handle,
            m=self.vectors["mean"].handle,
            v=self.vectors["mean_square"].handle,
            beta1_power=self._beta1**self.updates,
            beta2_power=self._beta2**self.updates,
            lr=learning_rate,
            beta1=self._beta1,
            beta2=self._beta2,
            epsilon=self._epsilon,
            grad=gradient,
            use_locking=True,
        )


class LiveAdd(Slotted[FlatVariable]):
    """See `relaax.optim.optimizers.Add`."""

    def __init__(self, size: int) -> None:
        super().__init__(FlatVariable.zeros, size)

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        tf.raw_ops.AssignAddVariableOp(resource=parameters.handle, value=gradient)
