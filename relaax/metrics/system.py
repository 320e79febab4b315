"""What processes take of their machine: memory and processor."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping

import psutil

MEGABYTE = 1e6
SAMPLE_SECONDS = 10.0
LARGEST_SHARE = 1 / 4000
"""Of a core, what a worker spends on sampling: what takes long is done less often. Two cores may have 64 workers, and
for the memory alone the system walks through all pages of a process."""

SERVER_EVERY = 3
"""Of so many samples one is of the server too: it costs what a worker's own does, and every worker takes one."""


class ProcessUsage:
    """Memory and processor of one process, by default this one."""

    def __init__(self, pid: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises psutil.Error where there is no such process."""
        self._process = psutil.Process(pid)
        self._clock = clock
        self._then, self._seconds = clock(), self._processor_seconds()

    def sample(self) -> dict[str, float]:
        """`memory_mb`: what would be free if it ended, the unique set size. `processor_percent`: of one core, since
        the last sample. Takes some 25 ms for a process with TensorFlow. Raises psutil.Error.
        """
        now, seconds = self._clock(), self._processor_seconds()
        figures = {"memory_mb": self._process.memory_full_info().uss / MEGABYTE}
        if now > self._then:
            figures["processor_percent"] = 100.0 * (seconds - self._seconds) / (now - self._then)
        self._then, self._seconds = now, seconds
        return figures

    def _processor_seconds(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


class Sampler:
    """Samples a worker, its server and its machine in the thread that calls `beat`; another thread takes the figures.

    They are gauges by name: worker/..., server/... and machine/available_memory_mb. What the system does not tell is
    left out.
    """

    def __init__(
        self,
        interval: float = SAMPLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        """Least seconds between two samples; clocks of the time that passes, and of what this thread uses of it."""
        self._interval = interval
        self._clock = clock
        self._processor = processor
        self._due = clock()
        self._samples = 0
        self._figures: dict[str, ProcessUsage] = {}
        for name, pid in (("worker", None), ("server", os.getppid())):
            with contextlib.suppress(psutil.Error):
                self._figures[name] = ProcessUsage(pid, clock)
        self._lock = threading.Lock()
        self._found: dict[str, float] = {}

    @property
    def found(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._found)

    def beat(self) -> None:
        """Sample, where it is time to. Never raises but for mistakes."""
        if self._clock() < self._due:
            return
        began = self._processor()
        found: dict[str, float] = {}
        for name, figures in self._figures.items():
            if name == "server" and self._samples % SERVER_EVERY:
                continue
            with contextlib.suppress(psutil.Error, OSError):
                found.update((f"{name}/{key}", value) for key, value in figures.sample().items())
        with contextlib.suppress(psutil.Error, OSError):
            found["machine/available_memory_mb"] = available_memory_mb()
        self._samples += 1
        self._due = self._clock() + max(self._interval, (self._processor() - began) / LARGEST_SHARE)
        with self._lock:
            self._found.update(found)

    def take(self) -> Mapping[str, float]:
        """The figures since the last call."""
        with self._lock:
            found, self._found = self._found, {}
            return found


def available_memory_mb() -> float:
    """What processes could still take of this machine's memory."""
    return psutil.virtual_memory().available / MEGABYTE
