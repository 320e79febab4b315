"""Filters of a worker's gradients before they are pushed: loss outliers, and an optimizer per worker."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from relaax.algorithm_base.config import ConfigBase, Schedule
from relaax.optim.host_optimizers import create
from relaax.optim.optimizers import OptimizerSpec
from relaax.optim.vector import HostVector
from relaax.parameters.interfaces import FlatVector, ParameterClientBase, Parameters, Pulled, Pushed


class GradientFilter(ABC):
    """A step that processes gradients between the agent and the parameter server."""

    @abstractmethod
    def __call__(self, gradient: FlatVector, loss: float | None, global_step: int) -> FlatVector | None:
        """Return the vector to push in place of `gradient`, float32 [P]; None to withhold it."""

    def reset(self) -> None:  # noqa: B027 - optional
        """Clear the state: the model was rolled back."""


class FilteredParameters(Parameters):
    """The parameters of an agent. Pushes pass the filters before the worker's parameters client sends them."""

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
        sent, withheld = self._filter(gradient, loss)
        return self._reset_on_rollback(self._client.push(sent, env_steps, want_parameters, withheld=withheld))

    def push_later(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, loss: float | None = None
    ) -> Callable[[], Pushed]:
        sent, withheld = self._filter(gradient, loss)
        answer = self._client.push_later(sent, env_steps, want_parameters, withheld=withheld)
        return lambda: self._reset_on_rollback(answer())

    def _filter(self, gradient: FlatVector | None, loss: float | None) -> tuple[FlatVector | None, bool]:
        """Return the vector to push in place of a gradient, and whether the gradient is withheld."""
        sent = gradient
        for each in self._filters:
            if sent is not None:
                sent = each(sent, loss, self._client.global_step)
        return sent, gradient is not None and sent is None

    def _reset_on_rollback(self, pushed: Pushed) -> Pushed:
        if pushed.discarded == "incarnation":
            for each in self._filters:
                each.reset()
        return pushed


WARM_UP = 20
"""Number of losses before detection starts, and number of consecutive outliers that reset the statistics."""
AVERAGED_LOSSES = 100
"""Number of losses with equal weight in mean and deviation. After it, each further loss has a weight of 1 %."""
_LARGEST = 1e150
"""Larger losses are not added to the statistics, because their squares overflow."""


class RunningLoss:
    """Running mean and standard deviation of a worker's absolute losses, for the detection of outliers.

    An outlier is added to the statistics with the value of the limit. So one very large loss does not hide the next
    outlier, and the statistics adapt to a lasting increase. After a very large lasting increase, they are reset by
    `WARM_UP` consecutive outliers.
    """

    def __init__(self, deviations: float) -> None:
        self._deviations = deviations
        self._mean = self._variance = 0.0
        self._count = self._outliers = 0

    def is_outlier(self, loss: float) -> bool:
        """Add a loss. Return whether |loss| > mean + deviations x deviation of the losses before it.

        The first `WARM_UP` losses are not outliers. NaN is not added and is not an outlier: the parameter server
        discards its gradient as not finite.
        """
        if math.isnan(loss):
            return False
        size = abs(float(loss))
        limit = self._mean + self._deviations * math.sqrt(self._variance)
        outlier = self._count >= WARM_UP and size > limit
        self._outliers = self._outliers + 1 if outlier else 0
        if self._outliers >= WARM_UP:
            self._reset()
        elif outlier or size < _LARGEST:
            self._add(min(size, limit) if outlier else size)
        return outlier

    def _reset(self) -> None:
        self._mean = self._variance = 0.0
        self._count = self._outliers = 0

    def _add(self, size: float) -> None:
        self._count += 1
        weight = max(1.0 / self._count, 1.0 / AVERAGED_LOSSES)
        difference = size - self._mean
        self._mean += weight * difference
        self._variance = (1.0 - weight) * (self._variance + weight * difference * difference)


class LossOutliers(GradientFilter):
    """A filter that withholds gradients with outlying losses.

    The steps of a withheld gradient are counted, and the parameter server counts the gradient as discarded. Each worker
    uses only its own losses. Pushes without a loss are not filtered.
    """

    def __init__(self, deviations: float) -> None:
        self._losses = RunningLoss(deviations)

    def __call__(self, gradient: FlatVector, loss: float | None, global_step: int) -> FlatVector | None:
        return None if loss is not None and self._losses.is_outlier(loss) else gradient


class LocalOptimizer(GradientFilter):
    """A filter that replaces each gradient by an update, −η·Δθ / √(g + ε) for RMSProp, which the parameter server adds.

    The learning rate is that of the last known global step. Each worker has its own statistics of the optimizer. They
    are not in checkpoints, and are reset for a new worker, a reconnected client, and after a roll-back of the model.
    They include gradients whose updates are later discarded as stale. A gradient that is not finite is not added to
    the statistics. It is passed on unchanged, so that the parameter server discards and counts it.
    """

    def __init__(self, optimizer: OptimizerSpec, schedule: Schedule) -> None:
        self._spec, self._schedule = optimizer, schedule
        self._update: Callable[[FlatVector, float], FlatVector] | None = None

    def __call__(self, gradient: FlatVector, loss: float | None, global_step: int) -> FlatVector | None:
        from relaax.optim.vector import is_finite

        if not is_finite(gradient):
            return gradient
        if self._update is None:  # on the first gradient: exploit workers do not need it
            self._update = _updates(self._spec, len(gradient))
        return self._update(gradient, self._schedule(global_step))

    def reset(self) -> None:
        self._update = None


def _updates(spec: OptimizerSpec, size: int) -> Callable[[FlatVector, float], FlatVector]:
    """Return a function of gradient and learning rate that returns the optimizer's update."""
    optimizer, zeros, vector = create(spec, size), np.zeros(size, np.float32), HostVector.zeros(size)

    def update(gradient: FlatVector, learning_rate: float) -> FlatVector:
        vector.assign(zeros)
        optimizer.apply(vector, np.ascontiguousarray(gradient), learning_rate)
        return vector.snapshot()

    return update


def agent_parameters(client: ParameterClientBase, config: ConfigBase) -> Parameters:
    """Return the parameters of an agent, with the filters of `config`. The worker's optimizer gets no outliers."""
    filters: list[GradientFilter] = []
    if config.loss_outlier_deviations is not None:
        filters.append(LossOutliers(config.loss_outlier_deviations))
    optimizer = config.worker_optimizer_spec()
    if optimizer is not None:
        filters.append(LocalOptimizer(optimizer, config.schedule))
    return FilteredParameters(client, filters)
