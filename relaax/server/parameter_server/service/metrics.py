"""Metrics of workers: rates, latencies and resources, written every few seconds, and what each worker has done."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psutil

from relaax.metrics import Fleet, Quantiles
from relaax.metrics.histogram import Histogram
from relaax.metrics.system import ProcessUsage, available_memory_mb
from relaax.parameters import parameter_server_pb2 as pb


class Rates:
    """Turns counters into rates: their growth between two calls, over the seconds between."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[float, dict[str, int]] | None = None

    def __call__(self, counters: Mapping[str, int]) -> dict[str, float]:
        """Return the rates by the counters' names; empty at the first call."""
        now, last = self._clock(), self._last
        self._last = (now, dict(counters))
        if last is None or now <= last[0]:
            return {}
        before, old = last
        return {name: (value - old.get(name, 0)) / (now - before) for name, value in counters.items()}


INTERVAL = 5.0
FIRST = 1.0
"""Seconds until they are first written, so that a short run has some."""

ACT = "latency/act_ms"


class PeriodicMetrics:
    """Takes reports from every thread, and returns scalars to one writer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._quantiles = Quantiles()
        self._fleet = Fleet(clock=clock)
        self._own = ProcessUsage(clock=clock)
        self._due: float | None = None
        self._asked_due: float | None = None

    def take_in(self, worker_id: str, actor: int | None, env_steps: int, report: pb.MetricsReport) -> None:
        """Take a worker's report, which came with `env_steps` steps. `actor`: its first index; None of a learner."""
        for histogram in report.histograms:
            self._quantiles.add(histogram.name, zip(histogram.buckets, histogram.counts, strict=True))
        if actor is not None:
            self._fleet.note(worker_id, actor, env_steps, ((gauge.name, gauge.value) for gauge in report.gauges))

    def forget(self, worker_id: str) -> None:
        """Forget a worker that has left."""
        self._fleet.forget(worker_id)

    def scalars(self) -> dict[str, float]:
        """Return the scalars that are due; none if it is too early or nothing happened."""
        now = self._clock()
        if self._due is None:
            self._due = now + FIRST
        if now < self._due:
            return {}
        self._due = now + INTERVAL
        values = {**self._quantiles.drain(), **self._fleet.scalars()}
        return {**values, **self._of_this_process(values)} if values else {}

    def act_ms(self) -> tuple[float | None, float | None]:
        """Return the median and 99th percentile of the time of an answer, as last written.

        If nobody writes, those of the seconds since this was asked.
        """
        if self._due is None:
            now = self._clock()
            if self._asked_due is None or now >= self._asked_due:
                self._asked_due = now + INTERVAL
                self._quantiles.drain()
        return self._quantiles.latest(f"{ACT}/p50"), self._quantiles.latest(f"{ACT}/p99")

    def _of_this_process(self, values: dict[str, float]) -> dict[str, float]:
        figures: dict[str, float] = {}
        with contextlib.suppress(psutil.Error, OSError):
            figures = {f"system/parameter_server_{name}": value for name, value in self._own.sample().items()}
            available = available_memory_mb()  # of this machine; workers may be on others
            figures["system/available_memory_mb"] = min(available, values.get("system/available_memory_mb", available))
        return figures


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
