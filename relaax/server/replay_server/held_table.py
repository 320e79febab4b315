"""A table as the service holds it: its items, its limiter, its life, and who writes to it."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.replay.spec import TableDeclaration
from relaax.replay.table.table import InsertResult, Sample, Table
from relaax.replay.table.table_copy import TableCopy
from relaax.replay.table.writers import FrameStoreFull, OutOfStep, State
from relaax.replay.wire import MAX_ITEMS, MAX_MESSAGE, MESSAGE_RESERVE, InsertLayout, SampleLayout, sampled_bytes
from relaax.server.replay_server.tallies import TableTallies
from relaax.server.service_errors import InvalidRequest, MemoryExhausted

LONGEST_WAIT = 1.0
"""Seconds that a call waits for its turn at most."""
WAITING = 24
"""Inserts that wait at a time, and samples: more than these are told at once to come again, and leave threads free."""
MAX_WRITERS = 4096
"""Writers of a table that are remembered, the last ones."""
SILENT_SECONDS = 15.0
"""Seconds without an insert after which a writer is forgotten where its frames take the room of others'."""
UNDRAWN_SECONDS = 10.0
"""Without a sample for so long learners count as away: inserts that have waited are forced."""
_RECENT = 0.01


@dataclass(frozen=True, slots=True)
class WriterInsert:
    """Items of one writer, as `Table.insert` takes them. `wait`: seconds until it is told to come again."""

    writer: str
    sequence: int
    count: int
    columns: Mapping[str, npt.NDArray[Any]]
    priorities: npt.NDArray[np.float64] | None = None
    frames: npt.NDArray[np.uint8] | None = None
    first_frame: int = 0
    keep_from: int = 0
    wait: float = 0.0
    force: bool = False
    """Whether it has waited for long: it is not told to come again if learners are away."""
    leaving: bool = False
    """Whether its writer ends: it is not told to come again at all."""


@dataclass(frozen=True, slots=True)
class InsertAnswer:
    """What became of an insert. `expected`: the number to go on with if it is out of step, else None."""

    not_yet: bool = False
    duplicate: bool = False
    expected: int | None = None
    overrun: bool = False


class WaitingRoom:
    """Lets so many calls wait, so that others find a thread."""

    def __init__(self, places: int = WAITING) -> None:
        self._places = threading.BoundedSemaphore(places)

    @contextlib.contextmanager
    def place(self, wish: float) -> Iterator[float]:
        """Take a place; return the seconds for which the call may wait, 0 if no place is free."""
        taken = wish > 0 and self._places.acquire(blocking=False)
        try:
            yield min(wish, LONGEST_WAIT) if taken else 0.0
        finally:
            if taken:
                self._places.release()


class HeldTable:
    """One table of a shard, all of whose life has one name, its `incarnation`. Thread-safe."""

    def __init__(
        self,
        declaration: TableDeclaration,
        shards: int,
        session: str,
        clock: Callable[[], float] = time.monotonic,
        owner: str = "",
    ) -> None:
        """`owner`: the client whose session has the table for itself."""
        self.declaration = declaration
        self.session = session
        self.owner = owner
        self._shards = shards
        self.spec = declaration.spec_of_shard(shards)
        self.layout, self.sample_layout = InsertLayout(self.spec), SampleLayout(self.spec)
        self.limiter = declaration.limiter(shards)
        self.incarnation = uuid.uuid4().hex
        self.bytes = self.spec.bytes()
        self._table = Table(self.spec, seed=uuid.uuid4().int & (2**63 - 1))
        self._clock = clock
        self.heard = clock()
        """When somebody asked for the table last."""
        self._lock = threading.Lock()
        self._writers: OrderedDict[str, float] = OrderedDict()  # when each was heard of, the longest silent first
        self._drawn = clock()
        self._mean_age = 0.0
        self.earlier: tuple[str, ...] = ()
        """Former lives of a table that was kept over restarts, the last ones."""
        self.unclaimed = False
        """Whether it was restored, and nobody has asked for it since."""
        self.ended = False
        """Whether all of its writers have left."""

    @property
    def size(self) -> int:
        """How many items there are."""
        return self._table.size

    @property
    def total_priority(self) -> float:
        """Σ priority ** alpha; with a uniform sampler the number of items."""
        return self._table.total_priority

    @property
    def begun(self) -> bool:
        """Whether enough items were inserted for the first sample."""
        return self.limiter.has_min_size

    @property
    def tallies(self) -> TableTallies:
        """What has happened to the table."""
        totals = self._table.totals
        return TableTallies(
            tables=1,
            size=self.size,
            capacity=self.spec.capacity,
            bytes=self.bytes,
            inserts=totals.inserted,
            samples=totals.sampled,
            overruns=self.limiter.overruns,
            duplicates=totals.duplicates,
            stale_updates=totals.stale_updates,
            mean_age=self._mean_age,
        )

    def insert(self, insert: WriterInsert, room: WaitingRoom) -> InsertAnswer:
        """Insert once it is allowed. Raises InvalidRequest and MemoryExhausted: then nothing has changed."""
        self._heard_of(insert.writer)
        with value_errors_refused():
            force = insert.leaving or (insert.force and self._clock() - self._drawn >= UNDRAWN_SECONDS)
            # What is a duplicate or out of step anyway waits for nobody.
            booked = not force and insert.sequence == self._table.next_sequence(insert.writer)
            if booked:
                with room.place(insert.wait) as seconds:
                    if not self.limiter.await_insert(insert.count, seconds):
                        return InsertAnswer(not_yet=True)
            done = False
            try:
                inserted = self._insert(insert)
                done = not inserted.duplicate
            except OutOfStep as error:
                return InsertAnswer(expected=error.expected)
            finally:
                if booked and not done:
                    self.limiter.undo_insert(insert.count)
            allowed = booked or not done or self.limiter.force_insert(insert.count)
            return InsertAnswer(duplicate=inserted.duplicate, overrun=not allowed)

    def sample(
        self, count: int, wait: float, room: WaitingRoom, out: Mapping[str, npt.NDArray[Any]] | None = None
    ) -> Sample | None:
        """Draw items once that is allowed; None if it is not yet. `out`: see `Table.sample`. Raises InvalidRequest."""
        if count > MAX_ITEMS or count * sampled_bytes(self.spec) > MAX_MESSAGE - MESSAGE_RESERVE:
            most = min(MAX_ITEMS, (MAX_MESSAGE - MESSAGE_RESERVE) // sampled_bytes(self.spec))
            raise InvalidRequest(f"{count} items at once are too many: {most} of {self.spec.name!r} fit into a message")
        with value_errors_refused():
            with room.place(wait) as seconds:
                if not self.limiter.await_sample(count, seconds):
                    return None
            try:
                sample = self._table.sample(count, out)
            except ValueError:
                self.limiter.undo_sample(count)
                raise
        self._drawn = self._clock()
        self._mean_age += min(1.0, _RECENT * count) * (float(sample.ages.mean()) - self._mean_age)
        return sample

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64]) -> int:
        """Give items new priorities; return how many were applied. Raises InvalidRequest."""
        with value_errors_refused():
            return self._table.update_priorities(keys, priorities)

    def deregister(self, writer: str) -> None:
        """Forget a writer. Its items stay."""
        with self._lock:
            self._writers.pop(writer, None)
            self.ended = not self._writers
        self._table.remove_writer(writer)

    def forget_silent(self, seconds: float) -> None:
        """Remove the writers without an insert for so long."""
        while self._forget_one(seconds):
            pass

    def copy(self) -> tuple[TableCopy, dict[str, npt.NDArray[np.generic]]]:
        """Begin a copy of the table; return it, and the limiter's accounts."""
        return self._table.copy(), self.limiter.state()

    def restore(self, head: State, pieces: Iterable[State], accounts: State, lives: Sequence[str]) -> None:
        """Take the place of a table that had these `lives`, the last one last; see `copy`. Raises ValueError."""
        self._table.restore(head, pieces)
        self.limiter.restore(accounts)
        self.earlier = tuple(lives)
        self.unclaimed = True
        self._writers.update(dict.fromkeys(self._table.writers, self.heard))

    def claim(self, declaration: TableDeclaration, owner: str) -> None:
        """Take the limits and the owner of the first request after the table was restored. The limits may have changed,
        and the owner is not kept.
        """
        if self.unclaimed and declaration.spec == self.declaration.spec:
            self.unclaimed = False
            self.owner = owner
            limiter = declaration.limiter(self._shards)
            limiter.restore(self.limiter.state())
            self.declaration, self.limiter = declaration, limiter

    def _insert(self, insert: WriterInsert) -> InsertResult:
        """Insert; where there is no room for frames, forget writers that are silent."""
        while True:
            try:
                numbers = insert.priorities, insert.frames, insert.first_frame, insert.keep_from
                return self._table.insert(insert.writer, insert.sequence, insert.columns, *numbers)
            except FrameStoreFull as error:
                if not self._forget_one(SILENT_SECONDS):
                    raise MemoryExhausted(str(error)) from None

    def _heard_of(self, writer: str) -> None:
        with self._lock:
            self._writers[writer] = self._clock()
            self.ended = False
            self._writers.move_to_end(writer)
            crowd = len(self._writers) > MAX_WRITERS
        if crowd:
            self._forget_one(0.0)

    def _forget_one(self, seconds: float) -> bool:
        """Forget the writer that was silent longest, if it was for so long; return whether it was."""
        with self._lock:
            name, heard = next(iter(self._writers.items()), ("", self._clock()))
            if not name or self._clock() - heard < seconds:
                return False
            del self._writers[name]
        self._table.remove_writer(name)
        return True


@contextlib.contextmanager
def value_errors_refused() -> Iterator[None]:
    """Raise InvalidRequest with the sentence of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
