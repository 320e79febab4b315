"""Writing aggregated scalars to a TensorBoard run directory."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from relaax.metrics.rate_limited_log import OutageLog

_log = logging.getLogger(__name__)

RETRY = 60.0
"""Maximum seconds between two attempts to write while the directory is not writable."""
EVENT_FILE_BYTES = 1_000_000
"""Approximate maximum size of an event file. When a file has grown, a store copies the whole file."""
_EVENTS = "events.out.tfevents."
_EVENT_FILE = re.compile(re.escape(_EVENTS) + r"(\d{1,10})\.")
_numbers = itertools.count()


class Preface(Protocol):
    """A description of a run at its start and its end, as Summary values (see `relaax.metrics.run_description`)."""

    def begun(self) -> list[Any]: ...

    def ended(self) -> list[Any]: ...


Source = Callable[[], tuple[int, Mapping[str, float]]]
"""A function that returns the global step and the scalars to write for it."""
Origin = Callable[[], tuple[object, int]]
"""A function that returns the identity of the training's current start, and the global step from which it continues."""


class MetricsWriter:
    """A background thread that appends scalars from `source` to `directory` every `interval` seconds.

    While the directory is not writable, the curves are incomplete, a warning is logged once a minute, and the process
    continues. Retries back off up to `RETRY` seconds, and an empty file is removed.

    With each new `origin`, readers drop the points beyond its step, which are from before a crash.
    """

    def __init__(
        self,
        directory: Path | str,
        source: Source,
        interval: float = 1.0,
        preface: Preface | None = None,
        origin: Origin = lambda: (None, 0),
    ) -> None:
        self._directory = Path(directory)
        self._source = source
        self._interval = interval
        self._preface = preface
        self._is_introduced = False
        self._origin = origin
        self._start: object = self  # identity of the start that was written last; `self`: none
        self._events: EventFile | None = None
        self._pause = 0.0  # seconds until the next attempt while writing fails
        self._next = 0.0
        self._outage = OutageLog(_log)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def close(self) -> None:
        """Write the remaining scalars and stop. Called once, after `start`."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            if time.monotonic() >= self._next:  # scalars collected in between become one point
                self._write()
        self._write()
        if (events := self._events) is not None:
            self._attempt(lambda: self._introduce(events, lambda preface: preface.ended()))
        self._abandon()

    def _write(self) -> None:
        origin = self._origin()  # read first: no scalars from before a restart may follow the restart's event
        try:
            step, scalars = self._source()
        except Exception:  # a bug: the next scalars may still be available
            _log.exception("metrics could not be collected, retrying")
            return
        if scalars:
            self._attempt(lambda: self._append(step, scalars, *origin))

    def _append(self, step: int, scalars: Mapping[str, float], start: object, start_step: int) -> None:
        if self._events is not None and self._events.size >= EVENT_FILE_BYTES:
            self._abandon()
        if self._events is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._events = EventFile(self._directory)
        if start != self._start:
            self._events.add(_event(start_step + 1, session_start=True))  # readers drop the points from this step on
        if not self._is_introduced:
            self._introduce(self._events, lambda preface: preface.begun())
        self._events.add(_event(step, _scalar_values(scalars)))
        self._events.flush()
        self._start, self._is_introduced = start, True

    def _introduce(self, events: EventFile, values: Callable[[Preface], list[Any]]) -> None:
        if self._preface is None:
            return
        try:
            event = _event(0, values(self._preface))
        except Exception as error:  # such as a configuration that TensorBoard cannot represent: the curves matter more
            _log.warning("the metrics are written without configuration and hyperparameters: %s", error)
            self._preface = None
        else:
            events.add(event)

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # training continues whatever the file system does
            self._outage.failed("metrics cannot be written to %s, retrying: %s", self._directory, error)
            self._pause = min(max(2 * self._pause, self._interval), RETRY)
            self._next = time.monotonic() + self._pause
            self._abandon()
        else:
            self._outage.succeeded("metrics are written to %s again", self._directory)
            self._pause = 0.0

    def _abandon(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()


class EventFile:
    """A new event file in `directory`, named as by TensorBoard's own writer. Raises OSError.

    Readers sort files by name, which begins with a number. The number is the time, or one more than the highest number
    in the directory if the clock is behind.

    TensorBoard's own writer is not used: its thread prints a traceback if the disk is full.
    """

    def __init__(self, directory: Path) -> None:
        do_without_tensorflow()
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        number = max(int(time.time()), 1 + newest_number(path.name for path in directory.iterdir()))
        name = f"{_EVENTS}{number:010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self._path = directory / name
        self._file = self._path.open("xb")
        self._records = RecordWriter(self._file)
        self._has_events = False
        self.add(Event(wall_time=time.time(), file_version="brain.Event:2"))

    @property
    def size(self) -> int:
        """Number of bytes added."""
        return self._file.tell()

    def add(self, event: Any) -> None:
        """Append an event."""
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        """Flush the added events to the file system."""
        self._file.flush()
        self._has_events = True

    def close(self) -> None:
        """Write the remaining events. An empty file is removed."""
        try:
            self._file.close()
        except OSError as error:  # an earlier failure has been logged
            _log.debug("closing the event file: %s", error)
        if not self._has_events:
            with contextlib.suppress(OSError):
                self._path.unlink()


def newest_number(names: Iterable[str]) -> int:
    """Return the highest number of an event file in `names`, or 0 without event files."""
    return max((int(found[1]) for name in names if (found := _EVENT_FILE.match(name))), default=0)


def _scalar_values(scalars: Mapping[str, float]) -> list[Any]:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return [Summary.Value(tag=name, simple_value=value) for name, value in sorted(scalars.items())]


def _event(step: int, values: Sequence[Any] = (), session_start: bool = False) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary

    if session_start:
        return Event(wall_time=time.time(), step=step, session_log=SessionLog(status=SessionLog.START))
    return Event(wall_time=time.time(), step=step, summary=Summary(value=values))


def do_without_tensorflow() -> None:
    """Disable TensorFlow in TensorBoard, which checks for a module `notf`. Call before TensorBoard opens a file."""
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
