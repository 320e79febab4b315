"""A bridge around another one."""

from __future__ import annotations

from relaax.parameters.base import BridgeBase, FlatVector, Pulled, Pushed, Registered, Registration
from relaax.parameters.moments import Moments


class BridgeWrapper(BridgeBase):
    """Does what the bridge within does. A subclass changes what it is there for, most often `push`."""

    def __init__(self, bridge: BridgeBase) -> None:
        self._bridge = bridge

    def register(self, registration: Registration) -> Registered:
        return self._bridge.register(registration)

    def pull(self) -> Pulled:
        return self._bridge.pull()

    def gradient_memory(self) -> FlatVector | None:
        return self._bridge.gradient_memory()

    def push(
        self,
        gradient: FlatVector | None,
        env_steps: int,
        want_parameters: bool = True,
        *,
        loss: float | None = None,
        withheld: bool = False,
    ) -> Pushed:
        return self._bridge.push(gradient, env_steps, want_parameters, loss=loss, withheld=withheld)

    def scalar(self, name: str, value: float) -> None:
        self._bridge.scalar(name, value)

    def sample(self, name: str, value: float) -> None:
        self._bridge.sample(name, value)

    def gauge(self, name: str, value: float) -> None:
        self._bridge.gauge(name, value)

    def statistic(self, name: str, moments: Moments) -> None:
        self._bridge.statistic(name, moments)

    def episode(self, episode_return: float, length: int) -> None:
        self._bridge.episode(episode_return, length)

    def flush(self) -> None:
        self._bridge.flush()

    @property
    def global_step(self) -> int:
        return self._bridge.global_step

    def close(self) -> None:
        self._bridge.close()
