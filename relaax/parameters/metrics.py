"""A worker's metrics, gathered until a push or a report sends them."""

from __future__ import annotations

import time
from collections import deque
from typing import TypeVar

from relaax.lessons.values import Drawn
from relaax.metrics.histogram import Histogram
from relaax.metrics.names import check_name
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.interfaces import MetricsRecorder
from relaax.parameters.moments import Moments

REPORT_INTERVAL = 1.0
"""Minimum seconds between two reports that are sent without a push."""
_EPISODES_PER_REPORT = 4_096
_Result = TypeVar("_Result")


class MetricsCollector(MetricsRecorder):
    """Collector of episodes and games in order, sums of scalars, histograms, gauges, and merged statistics.

    If more than `max_episodes` of either are pending, the oldest are dropped. Statistics are sent with pushes only;
    reports contain everything else. The methods raise ValueError for an invalid name.
    """

    def __init__(self, max_episodes: int = 65_536) -> None:
        self._episodes: deque[pb.EpisodeResult] = deque(maxlen=max_episodes)
        self._games: deque[pb.GameResult] = deque(maxlen=max_episodes)
        self._scalars: dict[str, tuple[float, int]] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges: dict[str, float] = {}
        self._statistics: dict[str, Moments] = {}
        self._picture: pb.Picture | None = None

    def __bool__(self) -> bool:
        """Return whether there is anything to report."""
        gathered = self._episodes or self._games or self._scalars or self._histograms or self._gauges
        return bool(gathered) or self._picture is not None

    def episode(self, episode_return: float, length: int, drawn: Drawn | None = None) -> None:
        result = pb.EpisodeResult(episode_return=episode_return, length=length)
        if drawn is not None:
            result.edition, result.actor, result.joined = drawn.edition, drawn.of.actor, drawn.of.joined
            result.number = drawn.of.number
            result.parameters.extend(drawn.numbers.tolist())
        self._episodes.append(result)

    def game(self, checkpoint_id: str, episode_return: float) -> None:
        self._games.append(pb.GameResult(checkpoint=checkpoint_id, episode_return=episode_return))

    def scalar(self, name: str, value: float) -> None:
        if name not in self._scalars:
            self._scalars[check_name(name)] = (0.0, 0)
        total, count = self._scalars[name]
        self._scalars[name] = (total + float(value), count + 1)

    def sample(self, name: str, value: float) -> None:
        histogram = self._histograms.get(name)
        if histogram is None:
            histogram = self._histograms[check_name(name)] = Histogram()
        histogram.add(value)

    def gauge(self, name: str, value: float) -> None:
        self._gauges[check_name(name)] = float(value)

    def picture(self, height: int, width: int, pixels: bytes) -> None:
        self.wants_picture = False
        self._picture = pb.Picture(height=height, width=width, pixels=pixels)

    def statistic(self, name: str, moments: Moments) -> None:
        if name in self._statistics:
            moments = self._statistics[name].merged(moments)
        self._statistics[name] = moments

    def take_statistics(self) -> dict[str, Moments]:
        """Return the gathered statistics and clear them."""
        taken, self._statistics = self._statistics, {}
        return taken

    def take_report(self) -> pb.MetricsReport:
        """Return the gathered metrics and clear them. Episodes beyond the limit of a report stay for the next one."""
        episodes = _pop_first(self._episodes)
        games = _pop_first(self._games)
        scalars, self._scalars = self._scalars, {}
        histograms, self._histograms = self._histograms, {}
        gauges, self._gauges = self._gauges, {}
        picture, self._picture = self._picture, None
        return pb.MetricsReport(
            episodes=episodes,
            games=games,
            scalars=[pb.ScalarSum(name=name, sum=total, count=n) for name, (total, n) in scalars.items()],
            histograms=[
                pb.Histogram(name=name, buckets=histogram.counts.keys(), counts=histogram.counts.values())
                for name, histogram in histograms.items()
            ],
            gauges=[pb.Gauge(name=name, value=value) for name, value in gauges.items()],
            picture=picture,
        )


def _pop_first(results: deque[_Result]) -> list[_Result]:
    """Remove and return the first results, as many as a report may have."""
    return [results.popleft() for _ in range(min(len(results), _EPISODES_PER_REPORT))]


class Reports:
    """Reports without a push, each with a number so that the server does not count it twice."""

    def __init__(self, metrics: MetricsCollector) -> None:
        self._metrics = metrics
        self._unanswered: pb.ReportRequest | None = None
        self._number = 0
        self._reported = -REPORT_INTERVAL

    def restart_numbers(self) -> None:
        """Number the next reports from 1, because the worker registers with a new worker id."""
        self._number = 0

    def start_if_due(self) -> bool:
        """Return whether a report is due. If so, the next one is due `REPORT_INTERVAL` seconds later."""
        if time.monotonic() - self._reported < REPORT_INTERVAL:
            return False
        self._reported = time.monotonic()
        return True

    def next(self, worker_id: str) -> pb.ReportRequest | None:
        """Return the unanswered report with its old number; else a new one; else None if there are no new metrics."""
        if self._unanswered is None:
            if not self._metrics:
                return None
            self._unanswered = pb.ReportRequest(report=self._metrics.take_report())
        request = self._unanswered
        if request.worker_id != worker_id:
            self._number += 1
            request.worker_id, request.report_id = worker_id, self._number
        return request

    def acknowledge(self) -> None:
        """Drop the report that `next` returned: the server has answered it."""
        self._unanswered = None

    def final_report(self) -> pb.MetricsReport:
        """Return the report to send with the deregistration."""
        return self._unanswered.report if self._unanswered else self._metrics.take_report()
