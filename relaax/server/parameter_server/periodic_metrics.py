"""Metrics that are written every few seconds: latencies, and the resources of every process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import psutil

from relaax.metrics import Fleet, Quantiles
from relaax.metrics.system import ProcessUsage, available_memory_mb
from relaax.parameters import parameter_server_pb2 as pb

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
