"""Register workers and learners, and the actor indices of environments."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relaax.parameters.purposes import Purpose
from relaax.server.parameter_server.service.actors import ActorRanks, ActorTable, Indices
from relaax.server.parameter_server.service.metrics import WorkerActivity


@dataclass(frozen=True, slots=True)
class WorkerOrigin:
    """Where a worker's connection comes from: the environment's name and host, and the RLX server, HOST:PORT.

    `client` is the name that the client's token proves, empty without one. Of a learner: what it is called, and its own
    host.
    """

    environment: str = ""
    host: str = ""
    server: str = ""
    client: str = ""


UNKNOWN_ORIGIN = WorkerOrigin()


@dataclass(slots=True)
class RegisteredWorker:
    """A registered worker. `last_report` is the number of its last report that was counted."""

    worker_id: str
    actors: Indices
    purpose: Purpose
    frame_skip: int
    last_report: int = 0
    heard: float = 0.0
    session: str = ""
    is_new: bool = False
    """The session has come with this worker, which has only registered so far."""
    is_lost: bool = False
    """Its connection has ended without a goodbye, and it has not been heard since."""
    origin: WorkerOrigin = UNKNOWN_ORIGIN
    since: float = 0.0
    activity: WorkerActivity = field(default_factory=WorkerActivity)

    @property
    def client(self) -> str:
        """The client that answers for this worker's reports, for comparisons and logs: its name, or its session.

        All connections of one name are one client.
        """
        return f"client {self.origin.client}" if self.origin.client else f"session {self.session}"


class Registry:
    """The workers of this incarnation. Thread-safe.

    A worker counts as connected until it leaves, is `lost`, or is silent for `silence` seconds. If its session comes
    with another one, it is taken for lost until it is heard again: so the client of a killed worker comes back. It is
    forgotten after `forget_after` seconds, or if there are more than `capacity`, and must then register again. Its
    session keeps its actor indices for as long after the last that was heard of it.
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
        self._workers: OrderedDict[str, RegisteredWorker] = OrderedDict()
        self._ranks = ActorRanks(clock=clock)
        self._lock = threading.Lock()  # of the workers and ranks; every push takes it
        self._actors = ActorTable(capacity, forget_after, clock)
        self._speakers: dict[str, set[str]] = {}  # the workers of each session
        self._actors_lock = threading.Lock()  # of indices and speakers, never taken within the other

    def register(
        self,
        worker_id: str,
        session: str,
        environments: int,
        purpose: Purpose,
        frame_skip: int,
        origin: WorkerOrigin = UNKNOWN_ORIGIN,
    ) -> RegisteredWorker:
        """Register a worker; registering it again changes nothing. A worker without a session is its own.

        A learner has no environments, and gets no actor indices.
        """
        with self._lock:
            worker = self._workers.get(worker_id)
            if worker is not None:
                self._touch(worker)
                return worker
        session = session or worker_id
        with self._actors_lock:
            is_new = session not in self._actors
            actors = self._actors.comes(session, environments) if purpose.acts else Indices(())
            speakers = self._speakers.setdefault(session, set())
            before = speakers - {worker_id}
            speakers.add(worker_id)
        newcomer = RegisteredWorker(
            worker_id, actors, purpose, frame_skip, session=session, is_new=is_new, origin=origin, since=self._clock()
        )
        with self._lock:
            worker = self._workers.setdefault(worker_id, newcomer)  # it may say the same twice at the same time
            self._touch(worker)
            for other in before & self._workers.keys():
                self._lose(self._workers[other])
            return worker

    def hear(self, worker_id: str, leaves: bool = False) -> RegisteredWorker | None:
        """Return the worker that has just called; None if it is unknown. `leaves`: it says goodbye."""
        with self._lock:
            worker = self._workers.get(worker_id)
            if worker is not None:
                worker.is_new &= leaves
                self._touch(worker)
                if worker.purpose.trains and not leaves:
                    self._ranks.add(worker_id, worker.session, worker.actors[0], len(worker.actors))
            return worker

    def leave(self, worker_id: str) -> RegisteredWorker | None:
        """Return and remove the worker; None if it is unknown."""
        with self._lock:
            worker = self._workers.pop(worker_id, None)
            self._ranks.remove(worker_id)
        if worker is not None:
            self._depart(worker)
        return worker

    def lost(self, worker_id: str) -> None:
        """Note that the worker's connection has ended without a goodbye: it was killed, or will be heard again in a
        moment.
        """
        with self._lock:
            worker = self._workers.get(worker_id)
            if worker is not None:
                self._lose(worker)

    def new_report(self, worker: RegisteredWorker, report_id: int) -> bool:
        """Return whether a report is new, and so to be counted."""
        with self._lock:
            new = report_id > worker.last_report
            worker.last_report = max(worker.last_report, report_id)
            return new

    def forgotten(self) -> list[str]:
        """Drop and return the workers that were silent for too long."""
        limit = self._clock() - self._forget_after
        gone = []
        with self._lock:
            while self._workers:
                worker = next(iter(self._workers.values()))
                if worker.heard > limit and len(self._workers) <= self._capacity:
                    break
                del self._workers[worker.worker_id]
                self._ranks.remove(worker.worker_id)
                gone.append(worker)
        for worker in gone:
            self._depart(worker, for_good=worker.heard <= limit)
        return [worker.worker_id for worker in gone]

    def clear(self) -> list[str]:
        """Drop and return all workers: each must register again. Sessions keep their actor indices."""
        with self._lock:
            gone = list(self._workers.values())
            self._workers.clear()
            for worker in gone:
                self._ranks.remove(worker.worker_id)
        for worker in gone:
            self._depart(worker)
        return [worker.worker_id for worker in gone]

    def connected(self) -> list[RegisteredWorker]:
        """Return the workers heard of lately, in the order in which they came."""
        with self._lock:
            limit = self._clock() - self._silence
            here = [worker for worker in self._workers.values() if worker.heard > limit and not worker.is_lost]
        return sorted(here, key=lambda worker: worker.since)

    def count(self, purpose: Purpose | None = None) -> int:
        """Return the number of workers heard of lately, of one purpose or of all."""
        return sum(purpose in (None, worker.purpose) for worker in self.connected())

    def ranks(self, worker_id: str) -> tuple[int, int]:
        """Return the rank of the worker's first environment, and the number of ranks: see `ActorRanks`.

        The rank of a worker that does not train is 0.
        """
        with self._lock:
            return self._ranks.of(worker_id)

    def age(self, worker: RegisteredWorker) -> float:
        """Return the seconds since a worker registered."""
        return self._clock() - worker.since

    def actors_as_json(self) -> dict[str, list[list[int]]]:
        """Return the actor table for a checkpoint."""
        with self._actors_lock:
            self._actors.expire()
            return self._actors.as_json()

    def restore_actors(self, sessions: Mapping[str, Sequence[Any]]) -> None:
        """Restore the actor table from a checkpoint. Called while there is no worker."""
        with self._actors_lock:
            self._actors.restore(sessions)

    def _depart(self, worker: RegisteredWorker, for_good: bool = False) -> None:
        """End its session if this was the last of its workers.

        One that came and did nothing keeps no indices: else a crowd of such would have all of them.
        """
        with self._actors_lock:
            speakers = self._speakers.get(worker.session, set())
            speakers.discard(worker.worker_id)
            if speakers:
                return
            self._speakers.pop(worker.session, None)
            if worker.is_new or for_good:
                self._actors.forget(worker.session)
            else:
                self._actors.goes(worker.session)

    def _lose(self, worker: RegisteredWorker) -> None:
        worker.is_lost = True
        self._ranks.remove(worker.worker_id)

    def _touch(self, worker: RegisteredWorker) -> None:
        worker.heard = self._clock()
        worker.is_lost = False
        self._workers.move_to_end(worker.worker_id)
