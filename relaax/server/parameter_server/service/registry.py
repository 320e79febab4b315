"""The registry of workers and learners, and of the actor indices of environments."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relaax.parameters.interfaces import Purpose
from relaax.server.parameter_server.service.actors import ActorRanks, ActorTable, Indices
from relaax.server.parameter_server.service.metrics import WorkerActivity


@dataclass(frozen=True, slots=True)
class WorkerOrigin:
    """The origin of a worker's connection: the environment's name and host, and the RLX server, HOST:PORT.

    `client` is the client name that belongs to the client's token, or empty. For a learner, `environment` is the
    learner's name, and `host` is its own host.
    """

    environment: str = ""
    host: str = ""
    server: str = ""
    client: str = ""


UNKNOWN_ORIGIN = WorkerOrigin()


@dataclass(slots=True)
class RegisteredWorker:
    """A registered worker. `last_report` is the number of the last report that was counted."""

    worker_id: str
    actors: Indices
    purpose: Purpose
    frame_skip: int
    last_report: int = 0
    last_call: float = 0.0
    session: str = ""
    is_new: bool = False
    """Whether this worker began the session and has not called since it registered."""
    is_lost: bool = False
    """Whether its connection has ended without deregistration, and it has not called since."""
    origin: WorkerOrigin = UNKNOWN_ORIGIN
    since: float = 0.0
    activity: WorkerActivity = field(default_factory=WorkerActivity)

    @property
    def client(self) -> str:
        """The client to which this worker's reports are attributed: by name if it has one, otherwise by session."""
        return f"client {self.origin.client}" if self.origin.client else f"session {self.session}"


class Registry:
    """The workers of this incarnation. Thread-safe.

    A worker counts as connected until it is removed, is marked lost, or is silent for `silence` seconds. If its session
    registers another worker, as the client of a killed worker does, it counts as lost until its next call. It is
    removed if it is silent for `remove_after` seconds, or if there are more than `capacity` workers. Then it must
    register again. Its session keeps the actor indices for the same time after its last call.
    """

    def __init__(
        self,
        silence: float = 60.0,
        remove_after: float = 3600.0,
        capacity: int = 16_384,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._silence = silence
        self._remove_after = remove_after
        self._capacity = capacity
        self._clock = clock
        self._workers: OrderedDict[str, RegisteredWorker] = OrderedDict()
        self._ranks = ActorRanks(clock=clock)
        self._lock = threading.Lock()  # guards workers and ranks; every push acquires it
        self._actors = ActorTable(capacity, remove_after, clock)
        self._session_workers: dict[str, set[str]] = {}  # worker ids by session
        self.on_absent: Callable[[str], None] = lambda worker_id: None
        """Called with the id of each worker that is removed or marked lost, without a lock."""
        self._actors_lock = threading.Lock()  # guards indices and session workers; never acquired while `_lock` is held

    def register(
        self,
        worker_id: str,
        session: str,
        environments: int,
        purpose: Purpose,
        frame_skip: int,
        origin: WorkerOrigin = UNKNOWN_ORIGIN,
    ) -> RegisteredWorker:
        """Register a worker. Without `session`, it has a session of its own. A learner gets no actor indices.

        Registering a worker again has no effect.
        """
        with self._lock:
            worker = self._workers.get(worker_id)
            if worker is not None:
                self._touch(worker)
                return worker
        session = session or worker_id
        with self._actors_lock:
            is_new = session not in self._actors
            actors = self._actors.connect(session, environments) if purpose.acts else Indices(())
            workers = self._session_workers.setdefault(session, set())
            before = workers - {worker_id}
            workers.add(worker_id)
        newcomer = RegisteredWorker(
            worker_id, actors, purpose, frame_skip, session=session, is_new=is_new, origin=origin, since=self._clock()
        )
        with self._lock:
            worker = self._workers.setdefault(worker_id, newcomer)  # two registrations may run at the same time
            self._touch(worker)
            lost = before & self._workers.keys()
            for other in lost:
                self._mark_lost(self._workers[other])
        for other in lost:
            self.on_absent(other)
        return worker

    def record_call(self, worker_id: str, deregisters: bool = False) -> RegisteredWorker | None:
        """Record a call of a worker, or its deregistration. Return the worker; None if it is unknown."""
        with self._lock:
            worker = self._workers.get(worker_id)
            if worker is not None:
                worker.is_new &= deregisters
                self._touch(worker)
                if worker.purpose.trains and not deregisters:
                    self._ranks.add(worker_id, worker.session, worker.actors[0], len(worker.actors))
            return worker

    def remove(self, worker_id: str) -> RegisteredWorker | None:
        """Return and remove the worker; None if it is unknown."""
        with self._lock:
            worker = self._workers.pop(worker_id, None)
            self._ranks.remove(worker_id)
        if worker is not None:
            self._end_session(worker)
        return worker

    def mark_lost(self, worker_id: str) -> None:
        """Mark a worker whose connection ended without a Leave call: it was killed, or will call again soon."""
        with self._lock:
            if worker := self._workers.get(worker_id):
                self._mark_lost(worker)
        self.on_absent(worker_id)

    def accept_report(self, worker: RegisteredWorker, report_id: int) -> bool:
        """Return whether a report is new and must be counted."""
        with self._lock:
            new = report_id > worker.last_report
            worker.last_report = max(worker.last_report, report_id)
            return new

    def remove_silent(self) -> list[str]:
        """Remove and return the workers that were silent for too long."""
        limit = self._clock() - self._remove_after
        gone = []
        with self._lock:
            while self._workers:
                worker = next(iter(self._workers.values()))
                if worker.last_call > limit and len(self._workers) <= self._capacity:
                    break
                del self._workers[worker.worker_id]
                self._ranks.remove(worker.worker_id)
                gone.append(worker)
        for worker in gone:
            self._end_session(worker, expired=worker.last_call <= limit)
        return [worker.worker_id for worker in gone]

    def clear(self) -> list[str]:
        """Remove and return all workers, which must register again. Sessions keep their actor indices."""
        with self._lock:
            gone = list(self._workers.values())
            self._workers.clear()
            for worker in gone:
                self._ranks.remove(worker.worker_id)
        for worker in gone:
            self._end_session(worker)
        return [worker.worker_id for worker in gone]

    def connected(self) -> list[RegisteredWorker]:
        """Return the connected workers in the order of their registration."""
        with self._lock:
            limit = self._clock() - self._silence
            here = [worker for worker in self._workers.values() if worker.last_call > limit and not worker.is_lost]
        return sorted(here, key=lambda worker: worker.since)

    def count(self, purpose: Purpose | None = None) -> int:
        """Return the number of connected workers, of one purpose or of all."""
        return sum(purpose in (None, worker.purpose) for worker in self.connected())

    def ranks(self, worker_id: str) -> tuple[int, int]:
        """Return the rank of the worker's first environment, 0 if it does not train, and the number of ranks."""
        with self._lock:
            return self._ranks.rank_of(worker_id)

    def age(self, worker: RegisteredWorker) -> float:
        """Return the seconds since a worker registered."""
        return self._clock() - worker.since

    def silence(self, worker: RegisteredWorker) -> float:
        """Return the seconds since the last call of a worker."""
        return self._clock() - worker.last_call

    def actors_as_json(self) -> dict[str, list[list[int]]]:
        """Return the actor table for a checkpoint."""
        with self._actors_lock:
            self._actors.expire()
            return self._actors.as_json()

    def restore_actors(self, sessions: Mapping[str, Sequence[Any]]) -> None:
        """Restore the actor table from a checkpoint. Called while there is no worker."""
        with self._actors_lock:
            self._actors.restore(sessions)

    def _end_session(self, worker: RegisteredWorker, expired: bool = False) -> None:
        """Disconnect the session of a removed worker if it has no other workers.

        A session that has only registered does not keep indices; otherwise many such sessions would occupy all indices.
        """
        self.on_absent(worker.worker_id)
        with self._actors_lock:
            workers = self._session_workers.get(worker.session, set())
            workers.discard(worker.worker_id)
            if workers:
                return
            self._session_workers.pop(worker.session, None)
            if worker.is_new or expired:
                self._actors.remove(worker.session)
            else:
                self._actors.disconnect(worker.session)

    def _mark_lost(self, worker: RegisteredWorker) -> None:
        worker.is_lost = True
        self._ranks.remove(worker.worker_id)

    def _touch(self, worker: RegisteredWorker) -> None:
        worker.last_call = self._clock()
        worker.is_lost = False
        self._workers.move_to_end(worker.worker_id)
