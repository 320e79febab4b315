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
    session: str = ""
    is_new: bool = False
    """The session has come with this worker, which has only registered so far."""


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

    def __contains__(self, session: object) -> bool:
        return session in self._sessions

    def forget(self, session: str) -> None:
        """Give the session's indices to others."""
        self._sessions.pop(session, None)

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
                session = session or worker_id
                is_new = session not in self._actors
                actors = self._actors.allot(session, environments)
                worker = Worker(worker_id, actors, exploit, frame_skip, session=session, is_new=is_new)
                self._workers[worker_id] = worker
            self._touch(worker)
            return worker

    def hear(self, worker_id: str, leaves: bool = False) -> Worker | None:
        """The worker, who just called; None where it is not known. `leaves`: to say that it leaves."""
        with self._lock:
            worker = self._workers.get(worker_id)
            if worker is not None:
                worker.is_new &= leaves
                self._touch(worker)
            return worker

    def leave(self, worker_id: str) -> Worker | None:
        """The worker, for the last time; None where it is not known."""
        with self._lock:
            worker = self._workers.pop(worker_id, None)
            if worker is not None:
                self._forget_if_new(worker)
            return worker

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
                self._forget_if_new(worker)
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

    def _forget_if_new(self, worker: Worker) -> None:
        """A session that came and did nothing keeps no indices: else a crowd of such would have all of them."""
        if worker.is_new and all(other.session != worker.session for other in self._workers.values()):
            self._actors.forget(worker.session)

    def _touch(self, worker: Worker) -> None:
        worker.heard = self._clock()
        self._workers.move_to_end(worker.worker_id)
