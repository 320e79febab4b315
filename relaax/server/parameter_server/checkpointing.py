"""Saving the model's checkpoints, on an interval and at the end, from a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from relaax.checkpoint import Arrays, CheckpointManager, StoreError

_log = logging.getLogger(__name__)


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


class Checkpointer:
    """Takes a state and saves it every `interval` seconds; nothing else ever waits for the store.

    A store that fails makes a checkpoint late: the log says so, and it is tried again after `retry` seconds.
    `saved` is the state that the store holds already, because it was restored from there.
    """

    def __init__(
        self,
        manager: CheckpointManager,
        take: Callable[[], ModelState | None],
        interval: float,
        on_saved: Callable[[Saved], None],
        retry: float = 10.0,
        saved: ModelState | None = None,
    ) -> None:
        self._manager = manager
        self._take = take
        self._interval = interval
        self._retry = min(retry, interval)
        self._on_saved = on_saved
        self._saved_mark = None if saved is None else saved.mark
        self._lock = threading.Lock()
        self._stop = threading.Event()
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
            state = self._take()
            if state is None or state.mark == self._saved_mark:
                return True
            for attempt in range(attempts):
                if attempt:
                    time.sleep(min(self._retry, 1.0))
                if self._save(state):
                    return True
            return False

    def _save(self, state: ModelState) -> bool:
        begun = time.monotonic()
        try:
            checkpoint = self._manager.save(state.global_step, state.parts, state.manifest)
        except StoreError as error:
            _log.error("the checkpoint at global step %d is late: %s", state.global_step, error)
            return False
        self._saved_mark = state.mark
        location = f"{self._manager.store.location}/{checkpoint.checkpoint_id}"
        seconds = time.monotonic() - begun
        _log.info("checkpoint %s at global step %d, in %.1f s", location, state.global_step, seconds)
        self._on_saved(Saved(location, state.global_step, checkpoint.manifest["time"]))
        return True

    def _run(self) -> None:
        wait = self._interval
        while not self._stop.wait(wait):
            try:
                wait = self._interval if self.save() else self._retry
            except Exception:  # a mistake in saving must not end saving
                _log.exception("the checkpoint failed")
                wait = self._retry
