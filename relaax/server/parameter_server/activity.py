"""What a registered worker has done, for those who look."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from relaax.metrics.histogram import Histogram
from relaax.parameters import parameter_server_pb2 as pb
from relaax.server.parameter_server.periodic_metrics import ACT

RECENT_EPISODES = 100
_RETURN, _LENGTH = "exploit/episode_return", "exploit/episode_length"


@dataclass(slots=True)
class WorkerActivity:
    """What a worker's reports add up to. Written by the thread that answers the worker, read by any."""

    env_steps: int = 0
    episodes: int = 0
    act_ms: float | None = None
    """Median of the last report that had any."""
    _returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))

    def take_in(self, report: pb.MetricsReport, env_steps: int) -> None:
        """Add a report that came with `env_steps` steps. Of an exploit worker they are those of its whole episodes."""
        self.env_steps += env_steps
        self.episodes += len(report.episodes)
        self._returns.extend(episode.episode_return for episode in report.episodes)
        for scalar in report.scalars:
            if scalar.name == _RETURN and scalar.count:
                self.episodes += scalar.count
                self._returns.extend([scalar.sum / scalar.count] * min(scalar.count, RECENT_EPISODES))
            elif scalar.name == _LENGTH:
                self.env_steps += int(scalar.sum)
        for histogram in report.histograms:
            if histogram.name == ACT:
                merged = Histogram()
                merged.merge(zip(histogram.buckets, histogram.counts, strict=True))
                self.act_ms = merged.quantile(0.5)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 100 episodes; None before the first."""
        returns = list(self._returns)
        return sum(returns) / len(returns) if returns else None
