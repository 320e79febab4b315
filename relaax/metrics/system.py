"""Resource use of processes: memory and processor."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

MEGABYTE = 1e6
SAMPLE_SECONDS = 10.0
LARGEST_SHARE = 1 / 4000
"""Maximum share of a core that a worker spends on sampling: slow samples are taken less often. Two cores may have 64
workers, and the system walks all pages of a process to measure its memory."""

SERVER_EVERY = 3
"""One in this many samples includes the server: all workers sample it, and each time costs as much as the worker."""


class ProcessUsage:
    """Memory and processor use of one process, by default this one."""

    def __init__(self, pid: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises psutil.Error if there is no such process."""
        self._process = psutil.Process(pid)
        self._clock = clock
        self._then, self._seconds = clock(), self._processor_seconds()

    def sample(self) -> dict[str, float]:
        """Return `memory_mb`, the unique set size, and `processor_percent`, of one core, since the last sample.

        Takes about 25 ms for a process with TensorFlow. Raises psutil.Error.
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
    """A sampler of a worker, its server and its machine. One thread calls `beat`, and another one calls `take`.

    The figures are gauges by name: worker/..., server/... and machine/available_memory_mb, if the system provides them.
    """

    def __init__(
        self,
        interval: float = SAMPLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        """`interval`: minimum seconds between samples. `clock`: elapsed time. `processor`: time used by this thread."""
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
        """Whether there are figures to take."""
        return bool(self._found)

    def beat(self) -> None:
        """Take a sample if one is due. Raises no error of the system."""
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
            found["machine/available_memory_mb"] = available_memory() / MEGABYTE
        self._samples += 1
        self._due = self._clock() + max(self._interval, (self._processor() - began) / LARGEST_SHARE)
        with self._lock:
            self._found.update(found)

    def take(self) -> Mapping[str, float]:
        """Return the figures since the last call."""
        with self._lock:
            found, self._found = self._found, {}
            return found


_OWN_GROUPS = Path("/proc/self/cgroup")
_MOUNTS = Path("/sys/fs/cgroup")


class _Version(NamedTuple):
    """The file names of a version of control groups."""

    mount: str
    limit: str
    used: str
    reclaimable: str


_V1 = _Version("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Version("", "memory.max", "memory.current", "inactive_file")


def available_memory() -> int:
    """Return the available memory in bytes, without swap, within the limits of this process's control groups."""
    return min([psutil.virtual_memory().available, *(max(0, limit - used) for limit, used in _limits())])


def total_memory() -> int:
    """Return the memory of the machine in bytes, or the limit of this process's control groups if it is lower."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _limits())])


def _limits() -> Iterator[tuple[int, int]]:
    """Yield limit and use, in bytes, of each control group of this process that has a limit."""
    for version, path in _groups():
        mount = _MOUNTS / version.mount
        # Within a container the path may be the host's, and the mount is the container's own group.
        for folder in {mount, *(mount / parent for parent in (path, *path.parents))}:
            with contextlib.suppress(OSError, ValueError):
                limit = int((folder / version.limit).read_text())  # ValueError if it is "max"
                used = int((folder / version.used).read_text())
                yield limit, used - _reclaimable(folder, version.reclaimable)


def _groups() -> Iterator[tuple[_Version, Path]]:
    with contextlib.suppress(OSError):
        for line in _OWN_GROUPS.read_text(errors="replace").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0" or "memory" in controllers.split(","):
                yield _V2 if number == "0" else _V1, Path(path.lstrip("/"))


def _reclaimable(folder: Path, name: str) -> int:
    """Return the bytes of the page cache that the kernel drops before it kills a process of the group."""
    for line in (folder / "memory.stat").read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
