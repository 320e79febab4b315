"""A table of a replay server: its items, its limiter, its incarnation and its writers."""

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
from relaax.replay.wire import InsertLayout, SampleLayout, most_sampled
from relaax.server.ports.wait_slots import WaitSlots
from relaax.server.replay_server.table_statistics import TableStatistics
from relaax.server.service_errors import InvalidRequest, MemoryExhausted

MAX_WRITERS = 4096
"""Maximum number of known writers of a table; beyond it the longest silent one is removed."""
SILENT_SECONDS = 15.0
"""Seconds without an insert after which a writer is removed if others need the slots of its frames."""
UNDRAWN_SECONDS = 10.0
"""Seconds without a sample after which inserts that have waited are forced, as no learner is active."""
_RECENT = 0.01


@dataclass(frozen=True, slots=True)
class WriterInsert:
    """An insert of one writer, with the arguments of `Table.insert`. `wait`: seconds to wait for the limiter."""

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
    """Whether the insert has waited for long, and is forced if no learner is active."""
    leaving: bool = False
    """Whether the writer is closing, and the insert is always forced."""


@dataclass(frozen=True, slots=True)
class InsertAnswer:
    """The result of an insert. `expected`: the number to continue with if the writer is out of step, else None."""

    not_yet: bool = False
    duplicate: bool = False
    expected: int | None = None
    overrun: bool = False


class ServedTable:
    """One table of a shard. `incarnation` is a unique name of this instance. Thread-safe."""

    def __init__(
        self,
        declaration: TableDeclaration,
        shards: int,
        session: str,
        clock: Callable[[], float] = time.monotonic,
        owner: str = "",
    ) -> None:
        """`owner`: the client whose session owns the table; empty for a shared table."""
        self.declaration = declaration
        self.session = session
        self.owner = owner
        self._shards = shards
        self.spec = declaration.spec_of_shard(shards)
        self.layout, self.sample_layout = InsertLayout(self.spec), SampleLayout(self.spec)
        self.limiter = declaration.limiter(shards)
        self.incarnation = uuid.uuid4().hex
        self.bytes = self.spec.bytes()
        self._most_sampled = most_sampled(self.spec)
        self._table = Table(self.spec, seed=uuid.uuid4().int & (2**63 - 1))
        self._clock = clock
        self.last_request = clock()
        """Time of the last request for the table."""
        self._lock = threading.Lock()
        self._writers: OrderedDict[str, float] = OrderedDict()  # time of the last insert of each, longest silent first
        self._last_sample = clock()
        self._mean_age = 0.0
        self.earlier_incarnations: tuple[str, ...] = ()
        """The most recent earlier incarnations of a table that was restored."""
        self.is_unclaimed = False
        """Whether the table was restored and has had no registration since."""
        self.has_ended = False
        """Whether all writers have deregistered."""

    @property
    def size(self) -> int:
        """Number of items."""
        return self._table.size

    @property
    def total_priority(self) -> float:
        """Σ priority ** alpha; the number of items for a uniform sampler."""
        return self._table.total_priority

    @property
    def has_min_size(self) -> bool:
        """Whether `min_size` items were inserted."""
        return self.limiter.has_min_size

    @property
    def statistics(self) -> TableStatistics:
        """The statistics of the table."""
        totals = self._table.totals
        return TableStatistics(
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

    def insert(self, insert: WriterInsert, slots: WaitSlots) -> InsertAnswer:
        """Insert if the limiter allows it in time. Raises InvalidRequest and MemoryExhausted without inserting."""
        self._touch_writer(insert.writer)
        with value_errors_as_invalid_request():
            force = insert.leaving or (insert.force and self._clock() - self._last_sample >= UNDRAWN_SECONDS)
            # A duplicate or out-of-step insert does not wait.
            booked = not force and insert.sequence == self._table.next_sequence(insert.writer)
            if booked and not self._await_turn(self.limiter.await_insert, insert.count, insert.wait, slots):
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
        self, count: int, wait: float, slots: WaitSlots, out: Mapping[str, npt.NDArray[Any]] | None = None
    ) -> Sample | None:
        """Draw items. Return None if the limiter does not allow it in time. Raises InvalidRequest.

        out: see `Table.sample`.
        """
        self.check_sample(count)
        with value_errors_as_invalid_request():
            if not self._await_turn(self.limiter.await_sample, count, wait, slots):
                return None
            try:
                sample = self._table.sample(count, out)
            except ValueError:
                self.limiter.undo_sample(count)
                raise
        self._last_sample = self._clock()
        self._mean_age += min(1.0, _RECENT * count) * (int(sample.ages.sum()) / count - self._mean_age)
        return sample

    def check_sample(self, count: int) -> None:
        """Raise InvalidRequest if a sample has too many items for a message."""
        if count > self._most_sampled:
            raise InvalidRequest(
                f"a sample of table {self.spec.name!r} may have at most {self._most_sampled} items, not {count}"
            )

    def update_priorities(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64]) -> int:
        """Update priorities; return how many were applied. Raises InvalidRequest."""
        with value_errors_as_invalid_request():
            return self._table.update_priorities(keys, priorities)

    def deregister(self, writer: str) -> None:
        """Remove a writer. Its items stay."""
        with self._lock:
            self._writers.pop(writer, None)
            self.has_ended = not self._writers
        self._table.remove_writer(writer)

    def remove_silent_writers(self, seconds: float) -> None:
        """Remove the writers without an insert for `seconds`."""
        while self._remove_silent_writer(seconds):
            pass

    def copy(self) -> tuple[TableCopy, dict[str, npt.NDArray[np.generic]]]:
        """Begin a copy of the table; return it, and the limiter's state."""
        return self._table.copy(), self.limiter.state()

    def restore(self, head: State, pieces: Iterable[State], limiter_state: State, incarnations: Sequence[str]) -> None:
        """Restore a copied table (see `copy`). `incarnations`: its incarnations, newest last. Raises ValueError."""
        self._table.restore(head, pieces)
        self.limiter.restore(limiter_state)
        self.earlier_incarnations = tuple(incarnations)
        self.is_unclaimed = True
        self._writers.update(dict.fromkeys(self._table.writers, self.last_request))

    def claim(self, declaration: TableDeclaration, owner: str) -> None:
        """Set limits and owner from the first registration after the table was restored.

        The configured limits may have changed, and checkpoints do not contain the owner.
        """
        if self.is_unclaimed and declaration.spec == self.declaration.spec:
            self.is_unclaimed = False
            self.owner = owner
            limiter = declaration.limiter(self._shards)
            limiter.restore(self.limiter.state())
            self.declaration, self.limiter = declaration, limiter

    @staticmethod
    def _await_turn(turn: Callable[[int, float], bool], count: int, wait: float, slots: WaitSlots) -> bool:
        """Return whether the limiter allows `count` items, at once or within `wait` seconds if a slot is free."""
        if turn(count, 0.0):
            return True
        with slots.acquire(wait) as seconds:
            return seconds > 0 and turn(count, seconds)

    def _insert(self, insert: WriterInsert) -> InsertResult:
        """Insert; if the frame store is full, remove silent writers and retry."""
        while True:
            try:
                numbers = insert.priorities, insert.frames, insert.first_frame, insert.keep_from
                return self._table.insert(insert.writer, insert.sequence, insert.columns, *numbers)
            except FrameStoreFull as error:
                if not self._remove_silent_writer(SILENT_SECONDS):
                    raise MemoryExhausted(str(error)) from None

    def _touch_writer(self, writer: str) -> None:
        with self._lock:
            self._writers[writer] = self._clock()
            self.has_ended = False
            self._writers.move_to_end(writer)
            too_many = len(self._writers) > MAX_WRITERS
        if too_many:
            self._remove_silent_writer(0.0)

    def _remove_silent_writer(self, seconds: float) -> bool:
        """Remove the longest silent writer if it was silent for `seconds`. Return whether it was removed."""
        with self._lock:
            name, last_insert = next(iter(self._writers.items()), ("", self._clock()))
            if not name or self._clock() - last_insert < seconds:
                return False
            del self._writers[name]
        self._table.remove_writer(name)
        return True


@contextlib.contextmanager
def value_errors_as_invalid_request() -> Iterator[None]:
    """Convert a ValueError to InvalidRequest with the same message."""
    try:
        yield
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
