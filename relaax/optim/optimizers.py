"""Which optimizer brings gradients to the flat vector, with which constants.

A specification (`RMSProp(decay=0.99, epsilon=0.1)`) is a value that can be compared and passed around; `create` makes
the live optimizer with its slots (see `relaax.optim.tensorflow_optimizers`), and `relaax.optim.host_optimizers` one in
the host's memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from relaax.optim import tensorflow_optimizers as live
from relaax.optim.tensorflow_optimizers import Optimizer, Slots

__all__ = ["AdaGrad", "Adam", "Add", "Momentum", "Optimizer", "OptimizerSpec", "RMSProp", "Slots"]


class OptimizerSpec(ABC):
    """Which optimizer, with which constants."""

    @abstractmethod
    def create(self, size: int) -> Optimizer[Any]:
        """Return a live optimizer of a vector of `size` elements, with slots at their initial values."""


@dataclass(frozen=True)
class RMSProp(OptimizerSpec):
    """RMSProp without momentum, shared by all workers (Mnih et al. 2016, equations S2 and S3).

    g ← α·g + (1 − α)·Δθ²;  θ ← θ − η·Δθ / √(g + ε).  `decay` is α; ε stands inside the root; g starts at zero.

    `centered` (Graves 2013, equations 38 to 41, without its momentum): m ← α·m + (1 − α)·Δθ, from zero;
    θ ← θ − η·Δθ / √(g − m² + ε).
    Where that is switched on when a run is resumed, m starts at zero; g − m² is never negative all the same.
    """

    decay: float = 0.99
    epsilon: float = 1e-5
    centered: bool = False

    def create(self, size: int) -> Optimizer[Any]:
        kind = live.LiveCenteredRMSProp if self.centered else live.LiveRMSProp
        return kind(size, self.decay, self.epsilon)


@dataclass(frozen=True)
class Momentum(OptimizerSpec):
    """Gradient descent with momentum, shared by all workers; each thread of Mnih et al. 2016 has its own m.

    m ← α·m + (1 − α)·Δθ;  θ ← θ − η·m.  `momentum` is α; m starts at zero. So m is a mean of gradients, and the same
    learning rate goes as far with any α. Where momentum is written as m ← α·m + Δθ, the rate is (1 − α) times this one.
    """

    momentum: float = 0.9

    def create(self, size: int) -> Optimizer[Any]:
        return live.LiveMomentum(size, self.momentum)


@dataclass(frozen=True)
class AdaGrad(OptimizerSpec):
    """AdaGrad (Duchi et al. 2011, section 1.1, the diagonal form), as DistBelief used it (Dean et al. 2012).

    s ← s + Δθ²;  θ ← θ − η·Δθ / (√s + ε).  ε is δ of the paper; s starts at zero and only grows.
    """

    epsilon: float = 1e-6

    def create(self, size: int) -> Optimizer[Any]:
        return live.LiveAdaGrad(size, self.epsilon)


@dataclass(frozen=True)
class Adam(OptimizerSpec):
    """Adam (Kingma and Ba 2015, the form at the end of section 2): ε stands outside the root."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def create(self, size: int) -> Optimizer[Any]:
        return live.LiveAdam(size, self.beta1, self.beta2, self.epsilon)


@dataclass(frozen=True)
class Add(OptimizerSpec):
    """θ ← θ + Δθ: what comes is an update already, made by the worker. No slots; the learning rate is the worker's."""

    def create(self, size: int) -> Optimizer[Any]:
        return live.LiveAdd(size)
