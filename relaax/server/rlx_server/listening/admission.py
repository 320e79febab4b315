"""Admission of workers: as many as memory and the configured limit allow."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from typing import NamedTuple

import psutil

from relaax.metrics.memory import available_memory

MEGABYTE = 2**20
SAMPLE_SECONDS = 5.0
SAMPLED_WORKERS = 8


class Need(NamedTuple):
    """The memory that a worker needs, assumed until workers can be measured."""

    bytes: float
    seconds: float
    """Time from its start until it uses that much; until then, room is reserved for it."""


# Measured for the Atari network. A forked worker shares the imported modules; a spawned one imports them again.
FORKED = Need(150 * MEGABYTE, 5.0)
SPAWNED = Need(500 * MEGABYTE, 15.0)


class Admission:
    """Decide whether there is room for another worker. Swap does not count as memory."""

    def __init__(self, max_workers: int, reserve_megabytes: float, need: Need = FORKED) -> None:
        self._max_workers = max_workers
        self._reserve = reserve_megabytes * MEGABYTE
        self._need = need
        self._worker_bytes = float(need.bytes)
        self._sampled_at = 0.0
        self._seen_at: dict[int, float] = {}
        self.refused = {"max_workers": 0, "memory": 0}
        """The number of refusals by reason."""

    def refusal(self, workers: Collection[int], counts: bool = True) -> str | None:
        """Return why there is no room beside the worker processes `workers`, in one sentence; None if there is room.

        `counts`: whether to count the refusal.
        """
        if len(workers) >= self._max_workers:
            self.refused["max_workers"] += counts
            return f"this server serves {self._max_workers} connections and has no room for another"
        self._sample(workers)
        growing = self._growing(workers)
        available = available_memory()
        if available - self._worker_bytes * (1 + growing) < self._reserve:
            self.refused["memory"] += counts
            return (
                f"this server has {available / MEGABYTE:.0f} MB of memory left, a worker needs "
                f"{self._worker_bytes / MEGABYTE:.0f} MB, {growing} have just started, and "
                f"{self._reserve / MEGABYTE:.0f} MB stay reserved"
            )
        return None

    def free_places(self, workers: Collection[int]) -> int:
        """Return how many more workers there is room for beside the worker processes `workers`."""
        self._sample(workers)
        spare = available_memory() - self._reserve - self._worker_bytes * self._growing(workers)
        return max(0, min(self._max_workers - len(workers), int(spare // self._worker_bytes)))

    def _growing(self, workers: Collection[int]) -> int:
        now = time.monotonic()
        self._seen_at = {pid: self._seen_at.get(pid, now) for pid in workers}
        return sum(now - seen < self._need.seconds for seen in self._seen_at.values())

    def _sample(self, workers: Collection[int]) -> None:
        """Measure the unique set size of some workers, at most every `SAMPLE_SECONDS`."""
        now = time.monotonic()
        if not workers or now - self._sampled_at < SAMPLE_SECONDS:
            return
        self._sampled_at = now
        sizes = []
        for pid in list(workers)[:SAMPLED_WORKERS]:
            with contextlib.suppress(psutil.Error):  # it may have just ended
                sizes.append(psutil.Process(pid).memory_full_info().uss)
        if sizes:
            # A worker that has just started is smaller than it will be.
            self._worker_bytes = max(sum(sizes) / len(sizes), self._need.bytes / 2)
