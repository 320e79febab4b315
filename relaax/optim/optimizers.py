"""Optimizers of flat vectors: specifications, and implementations on TensorFlow's device.

A specification (`RMSProp(decay=0.99, epsilon=0.1)`) is a value that can be compared and passed around. Its `create`
makes the optimizer with its slots on TensorFlow's device. `relaax.optim.host_optimizers` makes one in the host's
memory, which is several times faster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from relaax.nn.tensorflow_loading import tf
from relaax.optim.learning_rates import RateFactors, factor_vector
from relaax.optim.vector import FlatVector, Vector

Slots = dict[str, npt.NDArray[Any]]
V = TypeVar("V", bound=Vector)


class OptimizerSpec(ABC):
    """Specification of an optimizer: its kind and its constants."""

    @abstractmethod
    def create(self, size: int) -> Optimizer[Any]:
        """Return an optimizer for a vector of `size` elements, with slots at their initial values."""


@dataclass(frozen=True)
class RMSProp(OptimizerSpec):
    """RMSProp without momentum, shared by all workers (Mnih et al. 2016, equations S2 and S3).

    g ← α·g + (1 − α)·Δθ²;  θ ← θ − η·Δθ / √(g + ε).  `decay` is α; ε is inside the root. g starts at zero.

    `centered` (Graves 2013, equations 38 to 41, without its momentum): m ← α·m + (1 − α)·Δθ, from zero;
    θ ← θ − η·Δθ / √(g − m² + ε).
    If `centered` is enabled when a run is resumed, m starts at zero. g − m² is then still not negative.
    """

    decay: float = 0.99
    epsilon: float = 1e-5
    centered: bool = False

    def create(self, size: int) -> Optimizer[Any]:
        if self.centered:
            return _TensorFlowCentered(size, self.decay, self.epsilon)
        constants = {"rho": self.decay, "momentum": 0.0, "epsilon": self.epsilon}
        slots = {"mean_square": "ms"}
        return _TensorFlowFused(size, "ResourceApplyRMSProp", slots, optional="mean", scratch="mom", **constants)


@dataclass(frozen=True)
class Momentum(OptimizerSpec):
    """Gradient descent with momentum, shared by all workers. In Mnih et al. 2016, each thread has its own m.

    m ← α·m + (1 − α)·Δθ;  θ ← θ − η·m.  `momentum` is α; m starts at zero. So m is a mean of gradients, and the size of
    a step does not depend on α. For the form m ← α·m + Δθ, multiply the learning rate by (1 − α).
    """

    momentum: float = 0.9

    def create(self, size: int) -> Optimizer[Any]:
        scale = 1.0 - self.momentum  # the kernel computes m ← α·m + Δθ
        slots = {"momentum": "accum"}
        return _TensorFlowFused(size, "ResourceApplyMomentum", slots, scale=scale, momentum=self.momentum)


@dataclass(frozen=True)
class AdaGrad(OptimizerSpec):
    """AdaGrad (Duchi et al. 2011, section 1.1, the diagonal form), as DistBelief used it (Dean et al. 2012).

    s ← s + Δθ²;  θ ← θ − η·Δθ / (√s + ε).  ε is δ in the paper; s starts at zero and only grows.
    """

    epsilon: float = 1e-6

    def create(self, size: int) -> Optimizer[Any]:
        return _TensorFlowFused(size, "ResourceApplyAdagradV2", {"square_sum": "accum"}, epsilon=self.epsilon)


@dataclass(frozen=True)
class Adam(OptimizerSpec):
    """Adam (Kingma and Ba 2015, the form at the end of section 2): ε is outside the root."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def create(self, size: int) -> Optimizer[Any]:
        return _TensorFlowAdam(size, self)


@dataclass(frozen=True)
class Add(OptimizerSpec):
    """Addition: θ ← θ + Δθ. Workers push updates that include the learning rate, without its factors. No slots."""

    def create(self, size: int) -> Optimizer[Any]:
        return _TensorFlowAdd(size)


class Optimizer(ABC, Generic[V]):
    """An optimizer with its state, for a vector of `size` float32 elements. Not thread-safe."""

    def __init__(self, size: int) -> None:
        self.size = size

    @abstractmethod
    def apply(self, parameters: V, gradient: FlatVector, learning_rate: float) -> None:
        """Update `parameters` in place along `gradient`, float32 of shape [size]."""

    @abstractmethod
    def slots(self) -> Slots:
        """Return the optimizer's state for `restore`. It is valid until the next `apply`."""

    @abstractmethod
    def restore(self, slots: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from saved slots. Raises ValueError if names or shapes do not match this optimizer."""


def scaled(optimizer: Optimizer[V], factors: RateFactors) -> Optimizer[V]:
    """Return an optimizer whose learning rate has these factors by range; `optimizer` itself if there are none."""
    return Scaled(optimizer, factors) if factors else optimizer


class Scaled(Optimizer[V]):
    """An optimizer whose steps are scaled by range: θ ← θ + f · (θ_after − θ), where `optimizer` computes θ_after.

    The steps of all optimizers are proportional to the learning rate, so this scales the rate, up to the rounding of θ.
    It needs two copies of the parameters in the host's memory for each update.
    """

    def __init__(self, optimizer: Optimizer[V], factors: RateFactors) -> None:
        super().__init__(optimizer.size)
        self._optimizer = optimizer
        self._factors = factor_vector(factors)

    def apply(self, parameters: V, gradient: FlatVector, learning_rate: float) -> None:
        before = parameters.snapshot()
        self._optimizer.apply(parameters, gradient, learning_rate)
        after = np.subtract(parameters.shared(), before)
        after *= self._factors
        after += before
        parameters.assign(after)

    def slots(self) -> Slots:
        return self._optimizer.slots()

    def restore(self, slots: Mapping[str, npt.NDArray[Any]]) -> None:
        self._optimizer.restore(slots)


class Slotted(Optimizer[V]):
    """An optimizer with vectors as state, which start at zero.

    optional: a slot that a saved state may lack or have in excess. `restore` sets a missing one to zero, and ignores
      one that this optimizer does not have.
    """

    def __init__(self, zeros: Callable[[int], V], size: int, *names: str, optional: str | None = None) -> None:
        super().__init__(size)
        self.vectors = {name: zeros(size) for name in names}
        self._optional = optional

    def slots(self) -> Slots:
        return {name: vector.shared() for name, vector in self.vectors.items()}

    def restore(self, slots: Mapping[str, npt.NDArray[Any]]) -> None:
        slots = self._match_optional(slots)
        self._check(slots, dict.fromkeys(self.vectors, (self.size,)))
        for name, vector in self.vectors.items():
            vector.assign(slots[name])

    def _match_optional(self, slots: Mapping[str, npt.NDArray[Any]]) -> Mapping[str, npt.NDArray[Any]]:
        """Return saved slots with the optional slot if this optimizer has it, else without it."""
        if self._optional is None or not slots:
            return slots
        if self._optional in self.vectors:
            return {self._optional: np.zeros(self.size, np.float32), **slots}
        return {name: array for name, array in slots.items() if name != self._optional}

    @staticmethod
    def _check(slots: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, tuple[int, ...]]) -> None:
        found = {name: tuple(array.shape) for name, array in slots.items()}
        if found != expected:
            raise ValueError(f"the optimizer needs the slots {expected}, not {found}")


class AdamSlots(Slotted[V]):
    """The state of Adam: two vectors, and the number of updates."""

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


class FlatVariable(Vector):
    """A resource variable of shape [size] on TensorFlow's device (see `relaax.nn.devices`).

    In the host's memory, `snapshot` does not copy: it shares the variable's buffer, and a kernel copies a shared buffer
    before it writes to it. So a vector is copied at most once per update, and only if a snapshot is still referenced.
    On any other device, a snapshot is a copy.
    """

    def __init__(self, values: FlatVector) -> None:
        # A copy, because TensorFlow may use the memory of the array itself.
        self._variable = tf.Variable(np.array(values, np.float32), trainable=False, dtype=tf.float32)
        self._shares_memory = self.device.endswith("/device:CPU:0")

    @classmethod
    def zeros(cls, size: int) -> FlatVariable:
        """Return a vector of zeros, shape [size]."""
        return cls(np.zeros(size, np.float32))

    @property
    def device(self) -> str:
        """Return TensorFlow's full name of the variable's device."""
        return str(self._variable.device)

    @property
    def handle(self) -> tf.Tensor:
        """Return the handle for resource kernels, which run on the variable's device."""
        return self._variable.handle

    def snapshot(self) -> FlatVector:
        # Faster than `read_value`, which adds an identity operation: 0.05 ms per push with cold caches.
        value = tf.raw_ops.ReadVariableOp(resource=self._variable.handle, dtype=tf.float32)
        if self._shares_memory:
            shared: FlatVector = np.asarray(memoryview(value))
            return shared
        copy: FlatVector = value.numpy()
        copy.flags.writeable = False
        return copy

    def shared(self) -> FlatVector:
        return self.snapshot()

    def assign(self, values: FlatVector) -> None:
        self._variable.assign(np.array(values, np.float32))

    def blended(self, other: FlatVector, share: float) -> FlatVector:
        before = tf.constant(other)
        values = tf.raw_ops.ReadVariableOp(resource=self._variable.handle, dtype=tf.float32)
        after: FlatVector = (before + np.float32(share) * (values - before)).numpy()
        after.flags.writeable = False
        return after


class _TensorFlowFused(Slotted[FlatVariable]):
    """An optimizer that calls one of TensorFlow's kernels, `operation`.

    slots: the kernel's argument for each slot, by the slot's name.
    constants: the kernel's other arguments.
    scale: a factor of gradients.
    scratch: an argument for memory that is not state, because its values are not used.
    """

    def __init__(
        self,
        size: int,
        operation: str,
        slots: Mapping[str, str],
        *,
        optional: str | None = None,
        scale: float | None = None,
        scratch: str | None = None,
        **constants: float,
    ) -> None:
        super().__init__(FlatVariable.zeros, size, *slots, optional=optional)
        self._operation, self._constants = operation, constants
        self._scale = None if scale is None else np.float32(scale)
        self._arguments = {slots[name]: vector for name, vector in self.vectors.items()}
        if scratch is not None:
            self._arguments[scratch] = FlatVariable.zeros(size)

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        getattr(tf.raw_ops, self._operation)(
            var=parameters.handle,
            lr=learning_rate,
            grad=gradient if self._scale is None else gradient * self._scale,
            use_locking=True,
            **{argument: vector.handle for argument, vector in self._arguments.items()},
            **self._constants,
        )


class _TensorFlowCentered(Slotted[FlatVariable]):
    """Centered RMSProp, without TensorFlow's kernel, which takes the root of a variance that rounding made negative."""

    def __init__(self, size: int, decay: float, epsilon: float) -> None:
        super().__init__(FlatVariable.zeros, size, "mean_square", "mean", optional="mean")
        self._share, self._epsilon = np.float32(1.0 - decay), np.float32(epsilon)

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        gradient = tf.convert_to_tensor(gradient)
        mean_square = self._update_mean("mean_square", gradient * gradient)
        mean = self._update_mean("mean", gradient)
        variance = tf.maximum(mean_square - mean * mean, 0.0)
        step = np.float32(learning_rate) * gradient / tf.sqrt(variance + self._epsilon)
        tf.raw_ops.AssignSubVariableOp(resource=parameters.handle, value=step)

    def _update_mean(self, name: str, values: tf.Tensor) -> tf.Tensor:
        """Move a slot towards `values` by its share. Return its new values, float32 [size]."""
        handle = self.vectors[name].handle
        before = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        after = before + (values - before) * self._share
        tf.raw_ops.AssignVariableOp(resource=handle, value=after)
        return after


class _TensorFlowAdam(AdamSlots[FlatVariable]):
    def __init__(self, size: int, spec: Adam) -> None:
        super().__init__(FlatVariable.zeros, size)
        self._spec = spec

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        self.updates += 1
        spec = self._spec
        tf.raw_ops.ResourceApplyAdam(
            var=parameters.handle,
            m=self.vectors["mean"].handle,
            v=self.vectors["mean_square"].handle,
            beta1_power=spec.beta1**self.updates,
            beta2_power=spec.beta2**self.updates,
            lr=learning_rate,
            beta1=spec.beta1,
            beta2=spec.beta2,
            epsilon=spec.epsilon,
            grad=gradient,
            use_locking=True,
        )


class _TensorFlowAdd(Slotted[FlatVariable]):
    def __init__(self, size: int) -> None:
        super().__init__(FlatVariable.zeros, size)

    def apply(self, parameters: FlatVariable, gradient: FlatVector, learning_rate: float) -> None:
        tf.raw_ops.AssignAddVariableOp(resource=parameters.handle, value=gradient)
