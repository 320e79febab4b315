"""Who takes part: workers heard of lately, and the actor indices of their environments."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Worker:
    """A registered worker. `last_report` is the number of its last report that was counted."""

    worker_id: str
    actors: tuple[int, ...]
    exploit: bool
    frame_skip: int
    last_report: int = 0
    heard: float = 0.0


class ActorTable:
    """Gives each environment of each session an index; a session that comes back gets its own again.

    Indices are the smallest free ones. Bounded: beyond `capacity` sessions, the one that has not registered for
    longest loses its indices to others. Not thread-safe.
    """

    def __init__(self, capacity: int = 16_384) -> None:
        self._capacity = capacity
        self._sessions: OrderedDict[str, list[int]] = OrderedDict()

    def allot(self, session: str, environments: int) -> tuple[int, ...]:
        """The indices of the session's first `environments` environments."""
        indices = self._sessions.setdefault(session, [])
        self._sessions.move_to_end(session)
        taken = {index for owned in self._sessions.values() for index in owned}
        candidate = 0
        while len(indices) < environments:
            if candidate not in taken:
                indices.append(candidate)
            candidate += 1
        if len(self._sessions) > self._capacity:
            self._sessions.popitem(last=False)
        return tuple(indices[:environments])

    def as_json(self) -> dict[str, list[int]]:
        """Session to its indices, the longest absent first."""
        return {session: list(indices) for session, indices in self._sessions.items()}

    def restore(self, sessions: Mapping[str, Sequence[Any]]) -> None:
        """Take back what `as_json` gave."""
        self._sessions = OrderedDict((session, [int(i) for i in indices]) for session, indices in sessions.items())


class Registry:
    """The workers of this incarnation. Thread-safe.

    A worker counts as connected until it leaves or is silent for `silence` seconds; it is forgotten after
    `forget_after` seconds, or when there are more than `capacity`, and must then register again.
    """

    def __init__(
        self,
        silence: float = 60.0,
        forget_after: float = 3600.0,
        capacity: int = 16_384,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._silence = silence
        self._forget_after = forget_after
        self._capacity = capacity
        self._clock = clock
        self._workers: OrderedDict[str, Worker] = OrderedDict()
        self._actors = ActorTable(capacity)
        self._lock = threading.Lock()

    def register(self, worker_id: str, session: str, environments: int, exploit: bool, frame_skip: int) -> Worker:
        """Let a worker in; the same worker again changes nothing. A worker without a session is its own."""
        with self._lock:
            worker = self._workers.get(worker_id)
            if worker is None:
                actors = self._actors.allot(session or worker_id, environments)
                worker = self._workers[worker_id] = Worker(worker_id, actors, exploit, frame_skip)
            self._touch(worker)
            return worker

    def hear(self, worker_id: str) -> Worker | None:
        """The worker, who just called; None where it is not known."""
        with self._lock:
            worker = self._workers.get(worker_id)
            if worker is not None:
                self._touch(worker)
            return worker

    def leave(self, worker_id: str) -> Worker | None:
        """The worker, for the last time; None where it is not known."""
        with self._lock:
            return self._workers.pop(worker_id, None)

    def new_report(self, worker: Worker, report_id: int) -> bool:
        """Whether a report is to be counted: not where it is one that was counted before."""
        with self._lock:
            new = report_id > worker.last_report
            worker.last_report = max(worker.last_report, report_id)
            return new

    def forgotten(self) -> list[str]:
        """Drop workers that were silent for too long, and say which."""
        with self._lock:
            limit = self._clock() - self._forget_after
            gone = []
            while self._workers:
                worker_id, worker = next(iter(self._workers.items()))
                if worker.heard > limit and len(self._workers) <= self._capacity:
                    break
                del self._workers[worker_id]
                gone.append(worker_id)
            return gone

    def clear(self) -> list[str]:
        """Drop all workers, and say which: each must register again. Sessions keep their actor indices."""
        with self._lock:
            gone = list(self._workers)
            self._workers.clear()
            return gone

    @property
    def connected(self) -> int:
        """How many workers were heard of lately."""
        with self._lock:
            limit = self._clock() - self._silence
            return sum(worker.heard > limit for worker in self._workers.values())

    def actors_as_json(self) -> dict[str, list[int]]:
        """The actor table, for a checkpoint."""
        with self._lock:
            return self._actors.as_json()

    def restore_actors(self, sessions: Mapping[str, Sequence[Any]]) -> None:
        """Take the actor table back from a checkpoint."""
        with self._lock:
            self._actors.restore(sessions)

    def _touch(self, worker: Worker) -> None:
        worker.heard = self._clock()
        self._workers.move_to_end(worker.worker_id)
