"""From aggregated scalars to a TensorBoard run directory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

Source = Callable[[], tuple[int, Mapping[str, float]]]
"""Gives the global step and the scalars to be written at it."""


class MetricsWriter:
    """Asks `source` for scalars every `interval` seconds, from a thread of its own, and appends them to `directory`.

    A directory that cannot be written makes the curves incomplete, and the log says so; nothing else stops.
    """

    def __init__(self, directory: Path | str, source: Source, interval: float = 1.0) -> None:
        self._directory = Path(directory)
        self._source = source
        self._interval = interval
        self._events: Any = None
        self._failed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Begin writing."""
        self._thread.start()

    def close(self) -> None:
        """Write what is left and end. Called once, after `start`."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._write()
        self._write()
        self._abandon()

    def _write(self) -> None:
        step, scalars = self._source()
        if not scalars:
            return
        try:
            if self._events is None:
                self._events = self._open()
            self._events.add_event(_event(step, scalars))
            self._events.flush()
        except Exception as error:  # whatever the file system does, training goes on
            if not self._failed:
                _log.warning("metrics cannot be written to %s, trying on: %s", self._directory, error)
            self._failed = True
            self._abandon()
        else:
            if self._failed:
                _log.info("metrics are written to %s again", self._directory)
            self._failed = False

    def _open(self) -> Any:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._directory.mkdir(parents=True, exist_ok=True)
        return EventFileWriter(str(self._directory), max_queue_size=100, flush_secs=1)

    def _abandon(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            try:
                events.close()
            except Exception as error:  # it failed before, and the log has said so
                _log.debug("closing the event file: %s", error)


def _event(step: int, scalars: Mapping[str, float]) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=value) for name, value in sorted(scalars.items())]
    return Event(wall_time=time.time(), step=step, summary=Summary(value=values))
