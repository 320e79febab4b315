"""A thread that saves the model's checkpoints at an interval and at the end."""

from __future__ import annotations

import logging
import math
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

LOG_INTERVAL = 60.0  # seconds between log lines about the same failure
LAST_ATTEMPTS = 3  # for the last checkpoint, and for one that an ending shard waits for
LAST_SECONDS = 60.0  # seconds after which no new attempt at the last checkpoint starts
_FIRST_PAUSE = 0.5
EARLY = (60.0, 60.0, 120.0, 240.0)
"""Seconds before each of the first checkpoints of a training, if the interval is longer: after 1, 2, 4, 8 minutes."""
LOOK_SECONDS = 0.2
"""Seconds between two reads of the training step, if checkpoints are also saved by steps."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """An immutable snapshot to save as a checkpoint. States with equal `mark` are equal."""

    global_step: int
    parts: Mapping[str, Arrays]
    manifest: Mapping[str, Any]
    mark: object


@dataclass(frozen=True, slots=True)
class Saved:
    """The last saved checkpoint. `location` ends with its id. `time` is Unix time in seconds."""

    location: str
    global_step: int
    time: float

    @property
    def checkpoint_id(self) -> str:
        """The checkpoint's id."""
        return self.location.rpartition("/")[2]


class CheckpointLate(Exception):
    """No checkpoint is possible now, for a reason other than the store. The message says why."""


class _Outcome(Enum):
    SAFE, REFUSED, LATE = range(3)


class Saver(Protocol):
    """An object that saves states: a `CheckpointManager`, or the leader of several shards."""

    @property
    def store(self) -> Store:
        """The store of the checkpoints."""

    @property
    def lease(self) -> Lease | None:
        """The lease for writing to the store, or None if it needs none."""

    def save(self, global_step: int, parts: Mapping[str, Arrays], manifest: Mapping[str, Any]) -> Checkpoint:
        """Save a checkpoint. Raises StoreError."""


class Checkpointer:
    """A thread that saves a state every `interval` seconds. Training does not wait for the store.

    If `steps` is given, a checkpoint is also saved `steps` environment steps after the last one; with `every`, one when
    the step passes a multiple of `every`. `step` returns the present step.

    The first checkpoints of a training are saved earlier (`EARLY`), so that a crash soon after the start does not lose
    all of it. `made` is the number of checkpoints that the training already has, and these count as early ones.
    Otherwise a server that crashes repeatedly would save many early checkpoints, for which older ones would be deleted.

    If the store fails, or if `take` raises CheckpointLate, the checkpoint is late: this is logged, and saving is
    retried after `retry` seconds. `mark` returns the mark of the present state without a copy of it. If the mark is
    unchanged, no state is taken. `saved` is the mark of the state that the store already holds, if training was
    restored from it.
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
        every: int | None = None,
        step: Callable[[], int] = lambda: 0,
        counted: str = "global step",
    ) -> None:
        """Create a stopped thread. `counted` is the name of `global_step` in the log.

        `on_late` is called with the reason of each failed attempt. `wait` waits for a number of seconds and returns
        whether saving must end; tests replace it. `spool` keeps a copy of the last checkpoint if the store fails.
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
        self._logged: dict[int, float] = {}  # time of the last failure logged, by log level
        self._failing = False  # whether the store failed in the last attempt
        self.failures = 0
        """Number of attempts in which the store failed."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wait = wait or self._stop.wait
        self._spool = spool
        self._steps = steps
        self._every = every
        self._step = step
        self._counted = counted
        self._next_step = self._due_step()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, after it has finished a checkpoint that is being written."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def has_local_copy(self) -> bool:
        """Whether a copy of the last checkpoint is kept on this machine because the store failed."""
        return self._spool is not None and self._spool.has_copy

    def save(self, seconds: float = 0.0, last: bool = False, attempts: int = 1) -> bool:
        """Save now, in the calling thread. Return whether the newest state is saved, or there is no state yet.

        Makes up to `attempts` attempts, with growing pauses. While the store fails, makes further ones for
        `seconds` seconds. If this is the `last` checkpoint, a copy is kept on this machine once the store has failed,
        and removed when the store has accepted the checkpoint.
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
            return self._save_state(begun, last)
        except CheckpointLate as late:
            self._on_late(str(late))
            self._log_failure(begun, logging.WARNING, "the checkpoint is late: %s", late)
            return _Outcome.LATE

    def _save_state(self, begun: float, last: bool) -> _Outcome:
        state = self._take()
        if state is None or state.mark == self._saved_mark:
            return _Outcome.SAFE
        if last and self._failing:  # an attempt may take a minute, and a container may be killed sooner
            self._write_local_copy(state)
        try:
            checkpoint = self._manager.save(state.global_step, state.parts, state.manifest)
        except StoreError as error:
            self.failures += 1
            self._failing = True
            self._on_late(str(error))
            if last:
                self._write_local_copy(state)
            at = (self._counted, state.global_step)
            self._log_failure(begun, logging.ERROR, "the checkpoint at %s %d is late: %s", *at, error)
            return _Outcome.REFUSED
        except LeaseLost as lost:
            self._on_late(str(lost))
            return _Outcome.LATE  # the lease has logged the reason
        self._logged.clear()
        self._failing = False
        self._saved_mark = state.mark
        self._made += 1
        location = f"{self._manager.store.location}/{checkpoint.checkpoint_id}"
        seconds = time.monotonic() - begun
        _log.info("saved checkpoint %s at %s %d, in %.1f s", location, self._counted, state.global_step, seconds)
        self._on_saved(Saved(location, state.global_step, checkpoint.manifest["time"]))
        return _Outcome.SAFE

    def _write_local_copy(self, state: ModelState) -> None:
        if self._spool is not None and not (self._manager.lease and self._manager.lease.lost):
            self._spool.write_copy(state.global_step, state.parts, state.manifest)

    def _log_failure(self, now: float, level: int, sentence: str, *more: object) -> None:
        """Log a failure at once, and then at most once a minute per log level."""
        if level not in self._logged or now - self._logged[level] >= LOG_INTERVAL:
            _log.log(level, sentence, *more)
            self._logged[level] = now

    def _until_next(self) -> float:
        """Return the seconds until the next checkpoint. An early one stays due until it is saved."""
        return min(self._interval, EARLY[self._made]) if self._made < len(EARLY) else self._interval

    def _due_step(self) -> float:
        """Return the step of the next checkpoint; infinity if none is saved by steps."""
        step = self._step()
        after = math.inf if self._steps is None else step + self._steps
        return after if self._every is None else min(after, (step // self._every + 1) * self._every)

    def _wait_until_due(self, seconds: float) -> bool:
        """Wait until a checkpoint is due. Return whether saving must end. After a failure, steps are ignored."""
        if self._next_step == math.inf or self._failing:
            return self._wait(seconds)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self._step() < self._next_step:
            if self._wait(min(left, LOOK_SECONDS)):
                return True
        self._next_step = self._due_step()
        return self._stop.is_set()

    def _run(self) -> None:
        wait = self._until_next()
        while not self._wait_until_due(wait):
            try:
                wait = self._until_next() if self.save() else self._retry
            except Exception as error:  # an error in saving must not end the thread
                self._on_late(repr(error))
                _log.exception("the checkpoint thread hit an unexpected error")
                wait = self._retry
