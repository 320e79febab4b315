"""Filter gradients in the worker before they are sent: outlying losses, and an optimizer of the worker's own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from relaax.algorithm_base.config import ConfigBase, Schedule
from relaax.optim.optimizers import OptimizerSpec
from relaax.parameters.interfaces import FlatVector, ParameterClientBase, Parameters, Pulled, Pushed


class GradientFilter(ABC):
    """A stage that a gradient passes between the agent and the parameter server."""

    @abstractmethod
    def __call__(self, gradient: FlatVector, loss: float | None, global_step: int) -> FlatVector | None:
        """Return what is sent in place of `gradient`, float32 [P]; None if nothing of it is."""

    def forget(self) -> None:  # noqa: B027 - most remember nothing
        """Begin anew: the model was rolled back."""


class FilteredParameters(Parameters):
    """The parameters as an agent has them: pushes pass the filters, then the worker's client sends them."""

    def __init__(self, client: ParameterClientBase, filters: Sequence[GradientFilter]) -> None:
        self._client = client
        self._filters = filters

    def pull(self) -> Pulled:
        return self._client.pull()

    def gradient_memory(self) -> FlatVector | None:
        return self._client.gradient_memory()

    def push(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, loss: float | None = None
    ) -> Pushed:
        sent, withheld = self._filtered(gradient, loss)
        return self._heard(self._client.push(sent, env_steps, want_parameters, withheld=withheld))

    def push_later(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, loss: float | None = None
    ) -> Callable[[], Pushed]:
        sent, withheld = self._filtered(gradient, loss)
        answer = self._client.push_later(sent, env_steps, want_parameters, withheld=withheld)
        return lambda: self._heard(answer())

    def _filtered(self, gradient: FlatVector | None, loss: float | None) -> tuple[FlatVector | None, bool]:
        """Return what is sent in place of a gradient, and whether nothing is although there was one."""
        sent = gradient
        for each in self._filters:
            if sent is not None:
                sent = each(sent, loss, self._client.global_step)
        return sent, gradient is not None and sent is None

    def _heard(self, pushed: Pushed) -> Pushed:
        if pushed.discarded == "incarnation":
            for each in self._filters:
                each.forget()
        return pushed


WARM_UP = 20
"""Losses before the first judgement; so many outliers in a row, and the statistics begin anew."""
MEMORY = 100
"""Losses over which mean and deviation reach back: all of them up to here, then with weights that fall by 1 %."""
_LARGEST = 1e150
"""Losses from here on, infinite ones too, are not taken in: their squares are no numbers."""


class RunningLoss:
    """Mean and standard deviation of a worker's absolute losses, and which loss is beyond them.

    An outlier is taken in as if it were at the limit. So a single one, however large, does not hide the next, and a
    loss that has risen for good is soon accepted; if it has risen very far, after `WARM_UP` outliers in a row.
    """

    def __init__(self, deviations: float) -> None:
        self._deviations = deviations
        self._mean = self._variance = 0.0
        self._count = self._outliers = 0

    def is_outlier(self, loss: float) -> bool:
        """Add a loss; return whether |loss| > mean + deviations x deviation of those before it. Never before `WARM_UP`.

        NaN is neither judged nor taken in: its gradient is NaN as well, and is discarded as not finite.
        """
        if math.isnan(loss):
            return False
        size = abs(float(loss))
        limit = self._mean + self._deviations * math.sqrt(self._variance)
        outlier = self._count >= WARM_UP and size > limit
        self._outliers = self._outliers + 1 if outlier else 0
        if self._outliers >= WARM_UP:
            self._forget()
        elif outlier or size < _LARGEST:
            self._take(min(size, limit) if outlier else size)
        return outlier

    def _forget(self) -> None:
        self._mean = self._variance = 0.0
        self._count = self._outliers = 0

    def _take(self, size: float) -> None:
        self._count += 1
        weight = max(1.0 / self._count, 1.0 / MEMORY)
        difference = size - self._mean
        self._mean += weight * difference
        self._variance = (1.0 - weight) * (self._variance + weight * difference * difference)


class LossOutliers(GradientFilter):
    """Withhold the gradients of outliers. Their steps count, and the parameter server counts one discarded.

    Each worker judges by its own losses; a new worker begins with none. Pushes that name no loss are not judged.
    """

    def __init__(self, deviations: float) -> None:
        self._losses = RunningLoss(deviations)

    def __call__(self, gradient: FlatVector, loss: float | None, global_step: int) -> FlatVector | None:
        return None if loss is not None and self._losses.is_outlier(loss) else gradient


class LocalOptimizer(GradientFilter):
    """Turn each gradient into an update, −η·Δθ / √(g + ε) for RMSProp, that the parameter server only has to add.

    The learning rate is that at the global step last seen. The statistics live and die with the worker: a new worker, a
    reconnected client and a roll-back of the model begin with fresh ones, and no checkpoint has them. They have seen a
    gradient whose update was then discarded as stale. A gradient that is not finite is passed on as it is, for the
    parameter server to discard and count, and the statistics do not see it.
    """

    def __init__(self, optimizer: OptimizerSpec, schedule: Schedule) -> None:
        self._spec, self._schedule = optimizer, schedule
        self._update: Callable[[FlatVector, float], FlatVector] | None = None

    def __call__(self, gradient: FlatVector, loss: float | None, global_step: int) -> FlatVector | None:
        from relaax.optim.vector import is_finite

        if not is_finite(gradient):
            return gradient
        if self._update is None:  # with the first gradient: exploit workers need none
            self._update = _updates(self._spec, len(gradient))
        return self._update(gradient, self._schedule(global_step))

    def forget(self) -> None:
        self._update = None


def _updates(spec: OptimizerSpec, size: int) -> Callable[[FlatVector, float], FlatVector]:
    """Return what an optimizer adds to a vector of zeros, as a function of gradient and learning rate."""
    from relaax.optim.host_optimizers import create  # numba with it
    from relaax.optim.vector import HostVector

    optimizer, zeros, vector = create(spec, size), np.zeros(size, np.float32), HostVector.zeros(size)

    def update(gradient: FlatVector, learning_rate: float) -> FlatVector:
        vector.assign(zeros)
        optimizer.apply(vector, np.ascontiguousarray(gradient), learning_rate)
        return vector.snapshot()

    return update


def agent_parameters(client: ParameterClientBase, config: ConfigBase) -> Parameters:
    """Make the parameters for an agent: outliers are withheld first, and the worker's own optimizer never sees them."""
    filters: list[GradientFilter] = []
    if config.loss_outlier_deviations is not None:
        filters.append(LossOutliers(config.loss_outlier_deviations))
    optimizer = config.worker_optimizer_spec()
    if optimizer is not None:
        filters.append(LocalOptimizer(optimizer, config.schedule))
    return FilteredParameters(client, filters)
