"""Optimizers as TensorFlow's fused kernels on one flat vector.

A specification (`RMSProp(decay=0.99, epsilon=0.1)`) is a value that can be compared and passed around; `create` makes
the live optimizer with its slots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
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


class OptimizerSpec(ABC):
    """Which optimizer, with which constants."""

    @abstractmethod
    def create(self, size: int) -> Optimizer:
        """A live optimizer of a vector of `size` elements, with slots at their initial values."""


@dataclass(frozen=True)
class RMSProp(OptimizerSpec):
    """RMSProp without momentum, shared by all workers (Mnih et al. 2016, equations S2 and S3).

    g ← α·g + (1 − α)·Δθ²;  θ ← θ − η·Δθ / √(g + ε).  `decay` is α; ε stands inside the root; g starts at zero.
    """

    decay: float = 0.99
    epsilon: float = 0.1

    def create(self, size: int) -> Optimizer:
        return _LiveRMSProp(self, size)


@dataclass(frozen=True)
class Adam(OptimizerSpec):
    """Adam (Kingma and Ba 2015, the form at the end of section 2): ε stands outside the root."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def create(self, size: int) -> Optimizer:
        return _LiveAdam(self, size)


class _LiveRMSProp(Optimizer):
    def __init__(self, spec: RMSProp, size: int) -> None:
        super().__init__(size)
        self._spec = spec
        self._mean_square = FlatVariable.zeros(size)
        # The kernel keeps the last step here; without momentum it is never read, so it is no state.
        self._last_step = FlatVariable.zeros(size)

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        tf.raw_ops.ResourceApplyRMSProp(
            var=parameters.handle,
            ms=self._mean_square.handle,
            mom=self._last_step.handle,
            lr=learning_rate,
            rho=self._spec.decay,
            momentum=0.0,
            epsilon=self._spec.epsilon,
            grad=gradient,
            use_locking=True,
        )

    def slots(self) -> Slots:
        return {"mean_square": self._mean_square.snapshot()}

    def restore(self, slots: Mapping[str, npt.NDArray[Any]]) -> None:
        _check(slots, {"mean_square": (self.size,)})
        self._mean_square.assign(slots["mean_square"])


class _LiveAdam(Optimizer):
    def __init__(self, spec: Adam, size: int) -> None:
        super().__init__(size)
        self._spec = spec
        self._mean = FlatVariable.zeros(size)
        self._mean_square = FlatVariable.zeros(size)
        self._updates = 0

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        self._updates += 1
        tf.raw_ops.ResourceApplyAdam(
            var=parameters.handle,
            m=self._mean.handle,
            v=self._mean_square.handle,
            beta1_power=self._spec.beta1**self._updates,
            beta2_power=self._spec.beta2**self._updates,
            lr=learning_rate,
            beta1=self._spec.beta1,
            beta2=self._spec.beta2,
            epsilon=self._spec.epsilon,
            grad=gradient,
            use_locking=True,
        )

    def slots(self) -> Slots:
        return {
            "mean": self._mean.snapshot(),
            "mean_square": self._mean_square.snapshot(),
            "updates": np.array([self._updates], np.int64),
        }

    def restore(self, slots: Mapping[str, npt.NDArray[Any]]) -> None:
        _check(slots, {"mean": (self.size,), "mean_square": (self.size,), "updates": (1,)})
        self._mean.assign(slots["mean"])
        self._mean_square.assign(slots["mean_square"])
        self._updates = int(slots["updates"][0])


def _check(slots: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, tuple[int, ...]]) -> None:
    found = {name: tuple(array.shape) for name, array in slots.items()}
    if found != dict(expected):
        raise ValueError(f"the optimizer has the slots {dict(expected)}, not {found}")
