"""Saving the model's checkpoints, on an interval and at the end, from a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from relaax.checkpoint import Arrays, Checkpoint, Lease, LeaseLost, Store, StoreError

_log = logging.getLogger(__name__)

COMPLAIN = 60.0  # seconds between two sentences of the log on the same trouble
LAST_SECONDS = 60.0  # seconds after which no further attempt at the last checkpoint begins
EARLY = (60.0, 60.0, 120.0, 240.0)
"""Seconds before each of the first checkpoints of a training, if the interval is longer: after 1, 2, 4, 8 minutes."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """What a checkpoint is made of: an immutable snapshot. States with equal `mark` hold the same."""

    global_step: int
    parts: Mapping[str, Arrays]
    manifest: Mapping[str, Any]
    mark: object


@dataclass(frozen=True, slots=True)
class Saved:
    """Where the last checkpoint is. `time` is Unix time in seconds."""

    location: str
    global_step: int
    time: float


class Late(Exception):
    """There can be no checkpoint just now. The message says why."""


class Saver(Protocol):
    """Makes checkpoints of states: a `CheckpointManager`, or the leader of several shards."""

    @property
    def store(self) -> Store:
        """Where they are kept."""

    @property
    def lease(self) -> Lease | None:
        """The right to write there, where there is one."""

    def save(self, global_step: int, parts: Mapping[str, Arrays], manifest: Mapping[str, Any]) -> Checkpoint:
        """Make one. Raises StoreError."""


class Checkpointer:
    """Takes a state and saves it every `interval` seconds; nothing else ever waits for the store.

    The first checkpoints of a training come earlier (`EARLY`), so that a crash soon after the start does not lose all
    of it. `made` is how many the training has already: a server that crashes again and again makes no more of the early
    ones than one that runs on, and pushes no older ones out.

    A store that fails makes a checkpoint late, and so does `take` where it raises Late: the log says so, and it is
    tried again after `retry` seconds. `mark` says what `take` would be marked with, without a copy: where nothing is
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
    ) -> None:
        """`wait` waits for so many seconds, and says whether saving is to end; a test may have another clock."""
        self._manager = manager
        self._take = take
        self._interval = interval
        self._retry = min(retry, interval)
        self._on_saved = on_saved
        self._mark = mark
        self._saved_mark = saved
        self._made = made
        self._complained: dict[int, float] = {}  # when, by how bad it was
        self.failures = 0
        """Attempts to save that the store refused."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wait = wait or self._stop.wait
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Begin saving."""
        self._thread.start()

    def stop(self) -> None:
        """Save no more on the interval. A checkpoint that is being written is finished first."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def save(self, attempts: int = 1) -> bool:
        """Save now, in the calling thread. True where the newest state is safe, or there is none yet."""
        with self._lock:
            begun = time.monotonic()
            for attempt in range(attempts):
                if attempt:
                    time.sleep(min(self._retry, 1.0))
                if self._save():
                    return True
                if time.monotonic() - begun > LAST_SECONDS or (self._manager.lease and self._manager.lease.lost):
                    break
            return False

    def _save(self) -> bool:
        begun = time.monotonic()
        if self._saved_mark is not None and self._mark() == self._saved_mark:
            return True
        try:
            state = self._take()
        except Late as late:
            self._complain(begun, logging.WARNING, "the checkpoint is late: %s", late)
            return False
        if state is None or state.mark == self._saved_mark:
            return True
        try:
            checkpoint = self._manager.save(state.global_step, state.parts, state.manifest)
        except StoreError as error:
            self.failures += 1
            self._complain(
                begun, logging.ERROR, "the checkpoint at global step %d is late: %s", state.global_step, error
            )
            return False
        except LeaseLost:
            return False  # the lease has said why
        self._complained.clear()
        self._saved_mark = state.mark
        self._made += 1
        location = f"{self._manager.store.location}/{checkpoint.checkpoint_id}"
        seconds = time.monotonic() - begun
        _log.info("checkpoint %s at global step %d, in %.1f s", location, state.global_step, seconds)
        self._on_saved(Saved(location, state.global_step, checkpoint.manifest["time"]))
        return True

    def _complain(self, now: float, level: int, sentence: str, *more: object) -> None:
        """At once, and then once a minute."""
        if level not in self._complained or now - self._complained[level] >= COMPLAIN:
            _log.log(level, sentence, *more)
            self._complained[level] = now

    def _until_next(self) -> float:
        """Seconds until the next checkpoint. Where nothing was new, an early one is still to come."""
        return min(self._interval, EARLY[self._made]) if self._made < len(EARLY) else self._interval

    def _run(self) -> None:
        wait = self._until_next()
        while not self._wait(wait):
            try:
                wait = self._until_next() if self.save() else self._retry
            except Exception:  # a mistake in saving must not end saving
                _log.exception("the checkpoint failed")
                wait = self._retry
