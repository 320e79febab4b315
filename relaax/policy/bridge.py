"""A parameter server that is no server: parameters that stay as they are."""

from __future__ import annotations

from typing import Any

from relaax.parameters.base import BridgeBase, BridgeError, Pulled, Pushed, Registered, Registration
from relaax.parameters.moments import Moments


class FixedBridge(BridgeBase):
    """Gives the same parameters and statistics for ever; nothing is learned, and what is reported goes nowhere."""

    def __init__(self, pulled: Pulled) -> None:
        self._pulled = pulled

    def register(self, registration: Registration) -> Registered:
        return Registered(
            len(self._pulled.parameters), tuple(range(registration.environments)), self._pulled.global_step
        )

    def pull(self) -> Pulled:
        return self._pulled

    def push(self, gradient: Any, env_steps: int, want_parameters: bool = True, **_: Any) -> Pushed:
        """Raises BridgeError: an agent in exploit mode pushes nothing."""
        raise BridgeError("a policy that was loaded from a file does not learn")

    def scalar(self, name: str, value: float) -> None:
        pass

    def statistic(self, name: str, moments: Moments) -> None:
        pass

    def episode(self, episode_return: float, length: int) -> None:
        pass

    def flush(self) -> None:
        pass

    @property
    def global_step(self) -> int:
        return self._pulled.global_step

    def close(self) -> None:
        pass
