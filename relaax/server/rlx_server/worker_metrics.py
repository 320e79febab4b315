"""What a worker measures while it serves: how long answers take, and what it takes of the machine."""

from __future__ import annotations

from relaax.metrics.system import Sampler
from relaax.parameters.interfaces import MetricsRecorder
from relaax.rlx import Actions, Message, Ping, ServerMessage, Step

ACT, TURNAROUND = "latency/act_ms", "latency/turnaround_ms"
TELL_SECONDS = 0.5
"""Seconds between two reports of what was measured: each costs a worker that must wake up for it."""


class WorkerMetrics:
    """Tell the metrics what was measured. Used by the thread that answers, but for the sampler's beat."""

    def __init__(self, metrics: MetricsRecorder, sampler: Sampler) -> None:
        self._metrics = metrics
        self._sampler = sampler
        self._acted_at: float | None = None
        self._acts: list[float] = []  # seconds
        self._turnarounds: list[float] = []
        self._told_at = 0.0

    def answered(self, message: Message, answer: ServerMessage, read_at: float, now: float) -> None:
        """`message`, whose last byte was read at `read_at`, has its answer now, both in seconds of one clock."""
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
        """What was measured and not told yet."""
        for name, seconds in ((ACT, self._acts), (TURNAROUND, self._turnarounds)):
            for each in seconds:
                self._metrics.sample(name, 1e3 * each)
            seconds.clear()
        if self._sampler.found:
            for name, value in self._sampler.take().items():
                self._metrics.gauge(name, value)
