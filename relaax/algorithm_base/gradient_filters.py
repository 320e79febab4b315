"""Filter gradients in the worker before they are sent, whichever algorithm computes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from relaax.algorithm_base.config import ConfigBase
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


def agent_parameters(client: ParameterClientBase, config: ConfigBase) -> Parameters:
    """Make the parameters for an agent: outliers are withheld first, and the worker's own optimizer never sees them."""
    filters: list[GradientFilter] = []
    if config.loss_outlier_deviations is not None:
        from relaax.algorithm_base.loss_outliers import LossOutliers

        filters.append(LossOutliers(config.loss_outlier_deviations))
    optimizer = config.worker_optimizer_spec()
    if optimizer is not None:
        from relaax.algorithm_base.local_optimizer import LocalOptimizer  # numba with it

        filters.append(LocalOptimizer(optimizer, config.schedule))
    return FilteredParameters(client, filters)
