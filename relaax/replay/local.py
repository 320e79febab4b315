"""Replay memory within the process that uses it, for tests and for training without servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.replay.interfaces import Insertion, ReplayMemory, ReplayTraffic, ReplayWriter, Sampled
from relaax.replay.spec import TableDeclaration
from relaax.replay.table.limiter import RateLimiter
from relaax.replay.table.table import Table

_INCARNATION = "local"


class LocalReplay(ReplayMemory):
    """One table and its limiter. An actor and a learner may share it, in one thread or in two.

    environments: number of environments of the connection; environment i uses writer i mod `groups`. 0 for a learner.
    groups: number of writers.
    insert_timeout: seconds for which an insert waits for the learners. Use 0 if one thread inserts and samples.
    """

    def __init__(
        self,
        declaration: TableDeclaration,
        environments: int = 0,
        *,
        groups: int = 1,
        seed: int = 0,
        insert_timeout: float = 0.0,
    ) -> None:
        self.table = Table(declaration.spec, seed)
        self.limiter = declaration.limiter()
        members = [np.arange(group, environments, groups) for group in range(min(groups, environments))]
        self._writers = [
            LocalWriter(self.table, self.limiter, str(group), environments, insert_timeout)
            for group, environments in enumerate(members)
        ]

    @property
    def writers(self) -> Sequence[ReplayWriter]:
        return self._writers

    @property
    def traffic(self) -> ReplayTraffic:
        return ReplayTraffic(self.limiter.inserts, self.limiter.samples)

    def sample(self, count: int, timeout: float) -> Sampled | None:
        if not self.limiter.await_sample(count, timeout):
            return None
        drawn = self.table.sample(count)
        return Sampled(
            columns=drawn.columns,
            probabilities=drawn.probabilities,
            size=drawn.size,
            ages=drawn.ages,
            places=np.zeros(count, np.int64),
            keys=drawn.keys,
            incarnations={0: _INCARNATION},
        )

    def update_priorities(self, sampled: Sampled, priorities: npt.NDArray[np.floating[Any]]) -> None:
        self.table.update_priorities(sampled.keys, priorities)

    def close(self) -> None:
        for writer in self._writers:
            self.table.remove_writer(writer.name)


class LocalWriter(ReplayWriter):
    """A writer of the experience of some environments to a table in this process."""

    def __init__(
        self, table: Table, limiter: RateLimiter, name: str, environments: npt.NDArray[np.int64], timeout: float
    ) -> None:
        self.name = name
        self.environments = environments
        self._table, self._limiter, self._timeout = table, limiter, timeout
        self._sequence = 0
        self._next_frame = 0  # number of the first frame that is not in the table yet

    def insert(self, insertion: Insertion) -> None:
        count = len(next(iter(insertion.columns.values())))
        if not self._limiter.await_insert(count, self._timeout):
            self._limiter.force_insert(count)
        frames, first = insertion.frames, insertion.first_frame
        if frames is not None:
            sent = min(max(self._next_frame - first, 0), len(frames))
            frames, first = frames[sent:], first + sent
        try:
            self._table.insert(
                self.name,
                self._sequence + 1,
                insertion.columns,
                insertion.priorities,
                frames,
                first,
                keep_from=insertion.first_frame,
            )
        except ValueError:
            self._limiter.undo_insert(count)
            raise
        self._sequence += 1
        if frames is not None:
            self._next_frame = first + len(frames)
