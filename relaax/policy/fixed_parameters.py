"""Parameters that stay as they are, for an agent without a parameter server."""

from __future__ import annotations

from typing import Any

from relaax.parameters.base import Parameters, ParameterServerError, Pulled, Pushed


class FixedParameters(Parameters):
    """Give the same parameters and statistics for ever; nothing is learned."""

    def __init__(self, pulled: Pulled) -> None:
        self._pulled = pulled

    def pull(self) -> Pulled:
        return self._pulled

    def push(self, gradient: Any, env_steps: int, want_parameters: bool = True, *, loss: float | None = None) -> Pushed:
        """Raises ParameterServerError: an agent in exploit mode pushes nothing."""
        raise ParameterServerError("a policy that was loaded from a file does not learn")
