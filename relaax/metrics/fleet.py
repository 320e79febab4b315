"""Resource use and speed of every worker: the latest figures of each, and their totals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

SHOWN_AT_MOST = 64
KNOWN_AT_MOST = 16_384
"""Maximum number of workers. Beyond it the oldest is dropped, because only `scalars` removes silent workers."""
WORKER_FIGURES = ("memory_mb", "processor_percent")
_OF_SERVERS = {
    "server/memory_mb": "system/rlx_server_memory_mb",
    "server/processor_percent": "system/rlx_server_processor_percent",
}
_OF_MACHINES = {"machine/available_memory_mb": "system/available_memory_mb"}
_KNOWN = {f"worker/{name}" for name in WORKER_FIGURES} | _OF_SERVERS.keys() | _OF_MACHINES.keys()


@dataclass(slots=True)
class _Worker:
    actor: int
    reported_at: float
    steps: int = 0
    figures: dict[str, float] = field(default_factory=dict)


class Fleet:
    """A collector of workers' figures, which any thread adds. One writer calls `scalars`.

    A worker is identified by its first actor index. The first 64 have curves of their own; mean and maximum cover all.
    A worker that has not reported for `silence` seconds is dropped.
    """

    def __init__(self, silence: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._silence = silence
        self._clock = clock
        self._workers: dict[str, _Worker] = {}
        self._shown: set[int] = set()
        self._since: float | None = None
        self._lock = threading.Lock()

    def note(self, worker_id: str, actor: int, env_steps: int, gauges: Iterable[tuple[str, float]]) -> None:
        """Add `env_steps` to a worker's steps and store its gauges. Gauges of unknown names are ignored."""
        with self._lock:
            now = self._clock()
            if self._since is None:
                self._since = now
            worker = self._workers.setdefault(worker_id, _Worker(actor, now))
            if len(self._workers) > KNOWN_AT_MOST:
                del self._workers[next(iter(self._workers))]
            worker.reported_at = now
            worker.steps += env_steps
            worker.figures.update((name, value) for name, value in gauges if name in _KNOWN)

    def forget(self, worker_id: str) -> None:
        """Remove a worker that has disconnected."""
        with self._lock:
            self._workers.pop(worker_id, None)

    def scalars(self) -> dict[str, float]:
        """Return the latest figures, and steps per second since the last call; nothing if no worker reported."""
        with self._lock:
            now, since = self._clock(), self._since
            gone = [key for key, worker in self._workers.items() if worker.reported_at < now - self._silence]
            for key in gone:
                del self._workers[key]
            self._since = now if self._workers else None
            if since is None or all(worker.reported_at < since for worker in self._workers.values()):
                return {}
            values = self._over_all()
            for worker in sorted(self._workers.values(), key=lambda worker: worker.actor):
                if self._shows(worker.actor):
                    values.update(_alone(worker, now - since))
            for worker in self._workers.values():
                worker.steps = 0
            return values

    def _shows(self, actor: int) -> bool:
        if len(self._shown) < SHOWN_AT_MOST:
            self._shown.add(actor)
        return actor in self._shown

    def _over_all(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for name in WORKER_FIGURES:
            if found := self._of(f"worker/{name}"):
                values[f"system/worker_{name}/mean"] = sum(found) / len(found)
                values[f"system/worker_{name}/max"] = max(found)
        # Of several servers and machines, report the worst.
        values.update((tag, max(found)) for name, tag in _OF_SERVERS.items() if (found := self._of(name)))
        values.update((tag, min(found)) for name, tag in _OF_MACHINES.items() if (found := self._of(name)))
        return values

    def _of(self, name: str) -> list[float]:
        return [worker.figures[name] for worker in self._workers.values() if name in worker.figures]


def _alone(worker: _Worker, seconds: float) -> dict[str, float]:
    values = {
        f"workers/{name}/{worker.actor}": worker.figures[f"worker/{name}"]
        for name in WORKER_FIGURES
        if f"worker/{name}" in worker.figures
    }
    if worker.steps and seconds > 0:
        values[f"workers/steps_per_second/{worker.actor}"] = worker.steps / seconds
    return values
