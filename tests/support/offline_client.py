"""A parameters client without a server. It stores the reported metrics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relaax.lessons.values import Drawn, Edition, ValueRange
from relaax.parameters.interfaces import (
    FlatVector,
    MetricsRecorder,
    ParameterClientBase,
    Parameters,
    Pulled,
    Pushed,
    Registered,
    Registration,
)
from relaax.parameters.moments import Moments


class OfflineMetrics(MetricsRecorder):
    def __init__(self) -> None:
        self.episodes: list[tuple[float, int]] = []
        self.drawn: list[Drawn | None] = []
        """The parameters of the episodes."""
        self.scalars: list[tuple[str, float]] = []
        self.statistics: list[tuple[str, Moments]] = []
        self.games: list[tuple[str, float]] = []

    def scalar(self, name: str, value: float) -> None:
        self.scalars.append((name, value))

    def game(self, checkpoint_id: str, episode_return: float) -> None:
        self.games.append((checkpoint_id, episode_return))

    def statistic(self, name: str, moments: Moments) -> None:
        self.statistics.append((name, moments))

    def episode(self, episode_return: float, length: int, drawn: Drawn | None = None) -> None:
        self.episodes.append((episode_return, length))
        self.drawn.append(drawn)


EDITIONS = (
    Edition(1, 0, {"gravity": ValueRange(1, 9), "rooms": ValueRange(choices=(1, 2, 4))}),
    Edition(2, 1, {"gravity": ValueRange.constant(-3), "rooms": ValueRange(0, 1e30)}),
)


class OfflineClient(ParameterClientBase, Parameters):
    def __init__(self) -> None:
        self.metrics = OfflineMetrics()
        self.registration: Registration | None = None
        self.closed = False

    def register(self, registration: Registration) -> Registered:
        self.registration = registration
        return Registered(1, tuple(range(registration.environments)), 0)

    def pull(self) -> Pulled:
        return Pulled(np.zeros(1, np.float32), 0, 0)

    def push(
        self,
        gradient: FlatVector | None,
        env_steps: int,
        want_parameters: bool = True,
        *,
        loss: float | None = None,
        withheld: bool = False,
    ) -> Pushed:
        return Pushed(None, 0, 0, 0, self.pull() if want_parameters else None)

    def flush(self) -> None:
        pass

    @property
    def global_step(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True


class OfflineClientWithParameters(OfflineClient):
    """A client with parameters of environments, whose values change after each `EACH` readings."""

    EACH = 8
    editions: Sequence[Edition] = EDITIONS
    _readings = 0

    @property
    def edition(self) -> Edition:  # type: ignore[override]
        self._readings += 1
        return self.editions[self._readings // self.EACH % len(self.editions)]


class OfflineClientWithNewNames(OfflineClientWithParameters):
    """A client of a parameter server that is restarted with other parameters."""

    editions = (EDITIONS[0], Edition(1, 0, {"wind": ValueRange(0, 5)}))
