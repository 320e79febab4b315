"""Metrics of a worker until a message carries them."""

from __future__ import annotations

from collections import deque

from relaax.bridge import parameter_server_pb2 as pb
from relaax.bridge.moments import Moments
from relaax.metrics.names import check_name

_EPISODES_PER_REPORT = 4_096


class Gathered:
    """Episodes in order, sums of scalars, and merged statistics.

    Bounded: the oldest of very many episodes are dropped. Reports carry episodes and scalars; only pushes carry
    statistics too.
    """

    def __init__(self, max_episodes: int = 65_536) -> None:
        self._episodes: deque[tuple[float, int]] = deque(maxlen=max_episodes)
        self._scalars: dict[str, tuple[float, int]] = {}
        self._statistics: dict[str, Moments] = {}

    def __bool__(self) -> bool:
        """Whether there is anything to report."""
        return bool(self._episodes or self._scalars)

    def episode(self, episode_return: float, length: int) -> None:
        """A whole episode ended."""
        self._episodes.append((float(episode_return), int(length)))

    def scalar(self, name: str, value: float) -> None:
        """One sample. Raises ValueError where the name cannot be one."""
        if name not in self._scalars:
            self._scalars[check_name(name)] = (0.0, 0)
        total, count = self._scalars[name]
        self._scalars[name] = (total + float(value), count + 1)

    def statistic(self, name: str, moments: Moments) -> None:
        """Samples of a statistic. Raises ValueError where they cannot be merged with those before."""
        if name in self._statistics:
            moments = self._statistics[name].merged(moments)
        self._statistics[name] = moments

    def take_statistics(self) -> dict[str, Moments]:
        """The statistics that were gathered; they are gathered no longer."""
        taken, self._statistics = self._statistics, {}
        return taken

    def take(self) -> pb.MetricsReport:
        """What was gathered, as far as one message carries it; it is gathered no longer."""
        count = min(len(self._episodes), _EPISODES_PER_REPORT)
        episodes = [self._episodes.popleft() for _ in range(count)]
        scalars, self._scalars = self._scalars, {}
        return pb.MetricsReport(
            episodes=[pb.EpisodeResult(episode_return=value, length=length) for value, length in episodes],
            scalars=[pb.ScalarSum(name=name, sum=total, count=n) for name, (total, n) in scalars.items()],
        )
