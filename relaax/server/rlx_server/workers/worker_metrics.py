"""Measurements of a serving worker: latency and resource use."""

from __future__ import annotations

from relaax.metrics.system import Sampler
from relaax.parameters.interfaces import MetricsRecorder
from relaax.rlx import Actions, Message, Ping, ServerMessage, Step

ACT, TURNAROUND = "latency/act_ms", "latency/turnaround_ms"
TELL_SECONDS = 0.5
"""Seconds between two reports, each of which wakes a thread."""


class WorkerMetrics:
    """Record measurements as metrics. Used by the answering thread, except for the sampler's beat."""

    def __init__(self, metrics: MetricsRecorder, sampler: Sampler) -> None:
        self._metrics = metrics
        self._sampler = sampler
        self._acted_at: float | None = None
        self._acts: list[float] = []  # seconds
        self._turnarounds: list[float] = []
        self._told_at = 0.0

    def answered(self, message: Message, answer: ServerMessage, read_at: float, now: float) -> None:
        """Record that `message`, read completely at `read_at`, is answered at `now`, in seconds of one clock."""
        if type(message) is Step:
            self._acts.append(now - read_at)
            if self._acted_at is not None:
                self._turnarounds.append(read_at - self._acted_at)
            self._acted_at = now
            if now - self._told_at >= TELL_SECONDS:
                self._told_at = now
                self.tell()
        elif not isinstance(message, Ping):
            self._acted_at = now if isinstance(answer, Actions) else None

    def tell(self) -> None:
        """Report the measurements since the last report."""
        for name, seconds in ((ACT, self._acts), (TURNAROUND, self._turnarounds)):
            for each in seconds:
                self._metrics.sample(name, 1e3 * each)
            seconds.clear()
        if self._sampler.found:
            for name, value in self._sampler.take().items():
                self._metrics.gauge(name, value)
