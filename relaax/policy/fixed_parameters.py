"""Constant parameters and discarded metrics, for an agent without a parameter server."""

from __future__ import annotations

from typing import Any

from relaax.parameters.interfaces import MetricsRecorder, Parameters, ParameterServerError, Pulled, Pushed
from relaax.parameters.moments import Moments


class FixedParameters(Parameters):
    """Return the same parameters and statistics every time; nothing is learned."""

    def __init__(self, pulled: Pulled) -> None:
        self._pulled = pulled

    def pull(self) -> Pulled:
        return self._pulled

    def push(self, gradient: Any, env_steps: int, want_parameters: bool = True, *, loss: float | None = None) -> Pushed:
        """Raise ParameterServerError: an agent in exploit mode pushes nothing."""
        raise ParameterServerError("a policy that was loaded from a file does not learn")


class NoMetrics(MetricsRecorder):
    """Discard all metrics, for a policy that only acts."""

    def scalar(self, name: str, value: float) -> None:
        """Discard it."""

    def statistic(self, name: str, moments: Moments) -> None:
        """Discard it."""

    def episode(self, episode_return: float, length: int) -> None:
        """Discard it."""
