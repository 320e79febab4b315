"""Metrics of workers: rates, latencies and resources, written every few seconds, and the activity of each worker."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psutil

from relaax.metrics import Fleet, Quantiles
from relaax.metrics.histogram import Histogram
from relaax.metrics.system import MEGABYTE, ProcessUsage, available_memory
from relaax.parameters import parameter_server_pb2 as pb


class Rates:
    """Rates of counters: their growth per second between two calls."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[float, dict[str, int]] | None = None

    def __call__(self, counters: Mapping[str, int]) -> dict[str, float]:
        """Return the rates per second by name; empty at the first call, and if a counter fell, as after a roll-back."""
        now, last = self._clock(), self._last
        self._last = (now, dict(counters))
        if last is None or now <= last[0]:
            return {}
        before, old = last
        if any(value < old.get(name, 0) for name, value in counters.items()):
            return {}
        return {name: (value - old.get(name, 0)) / (now - before) for name, value in counters.items()}


INTERVAL = 5.0
FIRST = 1.0
"""Seconds until the first write, so that a short run has metrics."""

ACT = "latency/act_ms"


class PeriodicMetrics:
    """Metrics of workers: all threads add reports, and one writer reads them as scalars."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._quantiles = Quantiles()
        self._fleet = Fleet(clock=clock)
        self._own = ProcessUsage(clock=clock)
        self._due: float | None = None
        self._status_due: float | None = None

    def add_report(self, worker_id: str, actor: int | None, env_steps: int, report: pb.MetricsReport) -> None:
        """Add a worker's report with `env_steps` steps. `actor`: the worker's first actor index; None for a learner."""
        for histogram in report.histograms:
            self._quantiles.add(histogram.name, zip(histogram.buckets, histogram.counts, strict=True))
        if actor is not None:
            self._fleet.note(worker_id, actor, env_steps, ((gauge.name, gauge.value) for gauge in report.gauges))

    def remove_worker(self, worker_id: str) -> None:
        """Remove the metrics of a deregistered worker."""
        self._fleet.forget(worker_id)

    def scalars(self) -> dict[str, float]:
        """Return the scalars that are due; empty if it is too early or there are no reports."""
        now = self._clock()
        if self._due is None:
            self._due = now + FIRST
        if now < self._due:
            return {}
        self._due = now + INTERVAL
        values = {**self._quantiles.drain(), **self._fleet.scalars()}
        return {**values, **self._of_this_process(values)} if values else {}

    def act_ms(self) -> tuple[float | None, float | None]:
        """Return the median and 99th percentile of the time of an answer to a client, in ms, as last written.

        Without a writer, calls of this method compute them, at most every `INTERVAL` seconds.
        """
        if self._due is None:
            now = self._clock()
            if self._status_due is None or now >= self._status_due:
                self._status_due = now + INTERVAL
                self._quantiles.drain()
        return self._quantiles.latest(f"{ACT}/p50"), self._quantiles.latest(f"{ACT}/p99")

    def _of_this_process(self, values: dict[str, float]) -> dict[str, float]:
        figures: dict[str, float] = {}
        with contextlib.suppress(psutil.Error, OSError):
            figures = {f"system/parameter_server_{name}": value for name, value in self._own.sample().items()}
            available = available_memory() / MEGABYTE  # of this machine; workers may be on others
            figures["system/available_memory_mb"] = min(available, values.get("system/available_memory_mb", available))
        return figures


RECENT_EPISODES = RECENT_PUSHES = 100
_RETURN, _LENGTH = "exploit/episode_return", "exploit/episode_length"


@dataclass(slots=True)
class WorkerActivity:
    """Sums over a worker's reports. Written by the thread that answers the worker, read by all threads."""

    env_steps: int = 0
    episodes: int = 0
    act_ms: float | None = None
    """Median time of an answer to a client, in ms, from the last report that had its histogram."""
    staleness: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_PUSHES))
    """Staleness of the last pushes, in versions."""
    _returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))

    def add_report(self, report: pb.MetricsReport, env_steps: int) -> None:
        """Add a report with `env_steps` steps. For an exploit worker, count the steps of its whole episodes."""
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
    def mean_staleness(self) -> float | None:
        """Mean staleness of the last 100 pushes; None before the first."""
        recent = list(self.staleness)
        return sum(recent) / len(recent) if recent else None

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 100 episodes; None before the first."""
        returns = list(self._returns)
        return sum(returns) / len(returns) if returns else None
