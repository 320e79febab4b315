"""An optimizer whose statistics are the worker's own (Mnih et al. 2016, section 4, and its supplement)."""

from __future__ import annotations

import tensorflow as tf

from relaax.algorithm_base.schedule import Schedule
from relaax.optim.flat_variable import FlatVariable
from relaax.optim.optimizers import OptimizerSpec
from relaax.optim.vector import is_finite
from relaax.parameters.base import BridgeBase, FlatVector, Pushed
from relaax.parameters.wrapper import BridgeWrapper


class LocalOptimizer(BridgeWrapper):
    """Turns each gradient into an update, −η·Δθ / √(g + ε) for RMSProp, that the parameter server only has to add.

    The learning rate is that at the global step last seen. The statistics live and die with the worker: a new worker, a
    reconnected client and a roll-back of the model begin with fresh ones, and no checkpoint has them. They have seen a
    gradient whose update was then discarded as stale. A gradient that is not finite is passed on as it is, for the
    parameter server to discard and count, and the statistics do not see it.
    """

    def __init__(self, bridge: BridgeBase, optimizer: OptimizerSpec, schedule: Schedule) -> None:
        super().__init__(bridge)
        self._spec = optimizer
        self._schedule = schedule
        self._live: _Updates | None = None

    def push(
        self,
        gradient: FlatVector | None,
        env_steps: int,
        want_parameters: bool = True,
        *,
        loss: float | None = None,
        withheld: bool = False,
    ) -> Pushed:
        if gradient is not None and is_finite(gradient):
            if self._live is None:
                self._live = _Updates(self._spec, len(gradient))
            gradient = self._live(gradient, self._schedule(self.global_step))
        pushed = super().push(gradient, env_steps, want_parameters, loss=loss, withheld=withheld)
        if pushed.discarded == "incarnation":
            self._live = None
        return pushed


class _Updates:
    """What an optimizer adds to a vector of zeros. Made with the first gradient: exploit workers need none."""

    def __init__(self, spec: OptimizerSpec, size: int) -> None:
        self._optimizer = spec.create(size)
        self._zeros = tf.zeros([size])
        self._update = FlatVariable.zeros(size)

    def __call__(self, gradient: FlatVector, learning_rate: float) -> FlatVector:
        """The update, float32 [size], which never changes."""
        # No copy: the variable takes the buffer, and the kernel writes into one of its own.
        tf.raw_ops.AssignVariableOp(resource=self._update.handle, value=self._zeros)
        self._optimizer.apply(self._update, gradient, learning_rate)
        return self._update.snapshot()
