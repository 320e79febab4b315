"""Save the model's checkpoints, at an interval and at the end, in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from relaax.backoff import Pauses
from relaax.checkpoint import Arrays, Checkpoint, Lease, LeaseLost, Store, StoreError
from relaax.server.checkpoints.spool import Spool

_log = logging.getLogger(__name__)

COMPLAIN = 60.0  # seconds between two sentences of the log on the same trouble
LAST_ATTEMPTS = 3  # at the last checkpoint, and at one that a shard which leaves waits for
LAST_SECONDS = 60.0  # seconds after which no further attempt at the last checkpoint begins
_FIRST_PAUSE = 0.5
EARLY = (60.0, 60.0, 120.0, 240.0)
"""Seconds before each of the first checkpoints of a training, if the interval is longer: after 1, 2, 4, 8 minutes."""
LOOK_SECONDS = 0.2
"""Between two looks at how far training is, if checkpoints come by steps too."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """The immutable snapshot that a checkpoint is made of. States with equal `mark` are equal."""

    global_step: int
    parts: Mapping[str, Arrays]
    manifest: Mapping[str, Any]
    mark: object


@dataclass(frozen=True, slots=True)
class Saved:
    """The last checkpoint. `time` is Unix time in seconds."""

    location: str
    global_step: int
    time: float


class CheckpointLate(Exception):
    """No checkpoint is possible now, for a reason other than the store. The message says why."""


class _Outcome(Enum):
    SAFE, REFUSED, LATE = range(3)


class Saver(Protocol):
    """Makes checkpoints of states: a `CheckpointManager`, or the leader of several shards."""

    @property
    def store(self) -> Store:
        """The store that keeps them."""

    @property
    def lease(self) -> Lease | None:
        """The right to write there, if it is needed."""

    def save(self, global_step: int, parts: Mapping[str, Arrays], manifest: Mapping[str, Any]) -> Checkpoint:
        """Make a checkpoint. Raises StoreError."""


class Checkpointer:
    """Takes a state and saves it every `interval` seconds; nothing else ever waits for the store.

    A checkpoint comes sooner if training is `steps` environment steps beyond the one before; `step` says how far it is.

    The first checkpoints of a training come earlier (`EARLY`), so that a crash soon after the start does not lose all
    of it. `made` is how many the training has already: a server that crashes again and again makes no more of the early
    ones than one that runs on, and pushes no older ones out.

    A store that fails makes a checkpoint late, and so does `take` if it raises CheckpointLate: the log says so, and it
    is tried again after `retry` seconds. `mark` says what `take` would be marked with, without a copy: where nothing is
    new, nothing is taken. `saved` is the mark of what the store holds already, because it was restored from there.
    """

    def __init__(
        self,
        manager: Saver,
        take: Callable[[], ModelState | None],
        interval: float,
        on_saved: Callable[[Saved], None],
        retry: float = 10.0,
        mark: Callable[[], object] = lambda: None,
        saved: object = None,
        made: int = 0,
        wait: Callable[[float], bool] | None = None,
        spool: Spool | None = None,
        on_late: Callable[[str], None] = lambda why: None,
        steps: int | None = None,
        step: Callable[[], int] = lambda: 0,
        counted: str = "global step",
    ) -> None:
        """`on_late` is called with the reason of each failed attempt. `counted` is what the log calls `global_step`.

        `wait` waits for so many seconds, and says whether saving is to end; a test may have another clock.

        `spool` keeps the last checkpoint if the store does not take it.
        """
        self._manager = manager
        self._take = take
        self._interval = interval
        self._retry = min(retry, interval)
        self._on_saved = on_saved
        self._on_late = on_late
        self._mark = mark
        self._saved_mark = saved
        self._made = made
        self._complained: dict[int, float] = {}  # when, by how bad it was
        self._failing = False  # whether the store refused the last attempt
        self.failures = 0
        """Attempts that the store refused."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wait = wait or self._stop.wait
        self._spool = spool
        self._steps = steps
        self._step = step
        self._counted = counted
        self._next_step = step() + (steps or 0)
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Start saving."""
        self._thread.start()

    def stop(self) -> None:
        """Stop saving at the interval, after finishing a checkpoint that is being written."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def has_local_copy(self) -> bool:
        """Whether this machine keeps the last checkpoint because the store did not accept it."""
        return self._spool is not None and self._spool.has_copy

    def save(self, seconds: float = 0.0, last: bool = False, attempts: int = 1) -> bool:
        """Save now, in the calling thread. Return whether the newest state is safe, or there is none yet.

        If it fails there are so many `attempts`, with growing pauses, and while it is the store that fails further
        ones for so many `seconds`. If it is the `last` one, a copy is kept on this machine as soon as the store is
        known to fail, and removed when it has taken it.
        """
        with self._lock:
            begun, pauses = time.monotonic(), Pauses(_FIRST_PAUSE, self._retry)
            while (outcome := self._save(last)) is not _Outcome.SAFE:
                attempts, spent = attempts - 1, time.monotonic() - begun
                again = attempts > 0 or (outcome is _Outcome.REFUSED and spent < seconds)
                if (
                    not again
                    or spent >= max(seconds, LAST_SECONDS)
                    or (self._manager.lease and self._manager.lease.lost)
                ):
                    return False
                time.sleep(pauses.next())
            if last and self._spool is not None:
                self._spool.remove_copy()
            return True

    def _save(self, last: bool) -> _Outcome:
        begun = time.monotonic()
        if self._saved_mark is not None and self._mark() == self._saved_mark:
            return _Outcome.SAFE
        try:
            return self._save_taken(begun, last)
        except CheckpointLate as late:
            self._on_late(str(late))
            self._complain(begun, logging.WARNING, "the checkpoint is late: %s", late)
            return _Outcome.LATE

    def _save_taken(self, begun: float, last: bool) -> _Outcome:
        state = self._take()
        if state is None or state.mark == self._saved_mark:
            return _Outcome.SAFE
        if last and self._failing:  # each attempt may take a minute, and a container may have less
            self._keep(state)
        try:
            checkpoint = self._manager.save(state.global_step, state.parts, state.manifest)
        except StoreError as error:
            self.failures += 1
            self._failing = True
            self._on_late(str(error))
            if last:
                self._keep(state)
            at = (self._counted, state.global_step)
            self._complain(begun, logging.ERROR, "the checkpoint at %s %d is late: %s", *at, error)
            return _Outcome.REFUSED
        except LeaseLost as lost:
            self._on_late(str(lost))
            return _Outcome.LATE  # the lease has said why
        self._complained.clear()
        self._failing = False
        self._saved_mark = state.mark
        self._made += 1
        location = f"{self._manager.store.location}/{checkpoint.checkpoint_id}"
        seconds = time.monotonic() - begun
        _log.info("checkpoint %s at %s %d, in %.1f s", location, self._counted, state.global_step, seconds)
        self._on_saved(Saved(location, state.global_step, checkpoint.manifest["time"]))
        return _Outcome.SAFE

    def _keep(self, state: ModelState) -> None:
        if self._spool is not None and not (self._manager.lease and self._manager.lease.lost):
            self._spool.write_copy(state.global_step, state.parts, state.manifest)

    def _complain(self, now: float, level: int, sentence: str, *more: object) -> None:
        """Log a failure at once, and then once a minute."""
        if level not in self._complained or now - self._complained[level] >= COMPLAIN:
            _log.log(level, sentence, *more)
            self._complained[level] = now

    def _until_next(self) -> float:
        """Return the seconds until the next checkpoint. If nothing was new, an early one is still due."""
        return min(self._interval, EARLY[self._made]) if self._made < len(EARLY) else self._interval

    def _ends_within(self, seconds: float) -> bool:
        """Wait until a checkpoint is due; whether saving ends before. After a failure steps do not count."""
        if self._steps is None or self._failing:
            return self._wait(seconds)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self._step() < self._next_step:
            if self._wait(min(left, LOOK_SECONDS)):
                return True
        self._next_step = self._step() + self._steps
        return self._stop.is_set()

    def _run(self) -> None:
        wait = self._until_next()
        while not self._ends_within(wait):
            try:
                wait = self._until_next() if self.save() else self._retry
            except Exception as error:  # a mistake in saving must not end saving
                self._on_late(repr(error))
                _log.exception("the checkpoint failed")
                wait = self._retry
