"""An optimizer whose statistics belong to one worker (Mnih et al. 2016, section 4, and its supplement)."""

from __future__ import annotations

import numpy as np

from relaax.algorithm_base.gradient_filters import GradientFilter
from relaax.algorithm_base.schedule import Schedule
from relaax.optim.host_optimizers import create
from relaax.optim.optimizers import OptimizerSpec
from relaax.optim.vector import HostVector, is_finite
from relaax.parameters.interfaces import FlatVector


class LocalOptimizer(GradientFilter):
    """Turn each gradient into an update, −η·Δθ / √(g + ε) for RMSProp, that the parameter server only has to add.

    The learning rate is that at the global step last seen. The statistics live and die with the worker: a new worker, a
    reconnected client and a roll-back of the model begin with fresh ones, and no checkpoint has them. They have seen a
    gradient whose update was then discarded as stale. A gradient that is not finite is passed on as it is, for the
    parameter server to discard and count, and the statistics do not see it.
    """

    def __init__(self, optimizer: OptimizerSpec, schedule: Schedule) -> None:
        self._spec = optimizer
        self._schedule = schedule
        self._updates: _Updates | None = None

    def __call__(self, gradient: FlatVector, loss: float | None, global_step: int) -> FlatVector | None:
        if not is_finite(gradient):
            return gradient
        if self._updates is None:
            self._updates = _Updates(self._spec, len(gradient))
        return self._updates(gradient, self._schedule(global_step))

    def forget(self) -> None:
        self._updates = None


class _Updates:
    """What an optimizer adds to a vector of zeros. Made with the first gradient: exploit workers need none."""

    def __init__(self, spec: OptimizerSpec, size: int) -> None:
        self._optimizer = create(spec, size)
        self._zeros = np.zeros(size, np.float32)
        self._update = HostVector.zeros(size)

    def __call__(self, gradient: FlatVector, learning_rate: float) -> FlatVector:
        """Return the update, float32 [size], which never changes."""
        self._update.assign(self._zeros)
        self._optimizer.apply(self._update, np.ascontiguousarray(gradient), learning_rate)
        return self._update.snapshot()
