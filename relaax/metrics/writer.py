"""From aggregated scalars to a TensorBoard run directory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from relaax.metrics.without_tensorflow import do_without_tensorflow

_log = logging.getLogger(__name__)


class Preface(Protocol):
    """What a run says of itself when it begins and when it ends (see `relaax.metrics.preface`): values of a Summary."""

    def begun(self) -> list[Any]: ...

    def ended(self) -> list[Any]: ...


Source = Callable[[], tuple[int, Mapping[str, float]]]
"""Gives the global step and the scalars to be written at it."""


class MetricsWriter:
    """Asks `source` for scalars every `interval` seconds, from a thread of its own, and appends them to `directory`.

    A directory that cannot be written makes the curves incomplete, and the log says so; nothing else stops.
    """

    def __init__(
        self,
        directory: Path | str,
        source: Source,
        interval: float = 1.0,
        preface: Preface | None = None,
    ) -> None:
        self._directory = Path(directory)
        self._source = source
        self._interval = interval
        self._preface = preface
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
        if self._events is not None:
            self._attempt(lambda: self._introduce(lambda preface: preface.ended()))
        self._abandon()

    def _write(self) -> None:
        try:
            step, scalars = self._source()
        except Exception:  # a defect of ours: the next ones may be there all the same
            _log.exception("metrics could not be gathered, trying on")
            return
        if scalars:
            self._attempt(lambda: self._append(step, scalars))

    def _append(self, step: int, scalars: Mapping[str, float]) -> None:
        if self._events is None:
            self._events = self._open()
            self._introduce(lambda preface: preface.begun())
        self._events.add_event(_event(step, scalars))
        self._events.flush()

    def _introduce(self, values: Callable[[Preface], list[Any]]) -> None:
        if self._preface is None:
            return
        try:
            event = _event_of(values(self._preface))
        except Exception as error:  # such as a configuration that TensorBoard has no form for: the curves matter more
            _log.warning("the metrics go without configuration and hyperparameters: %s", error)
            self._preface = None
        else:
            self._events.add_event(event)

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
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
        do_without_tensorflow()
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
    from tensorboard.compat.proto.summary_pb2 import Summary

    return _event_of([Summary.Value(tag=name, simple_value=value) for name, value in sorted(scalars.items())], step)


def _event_of(values: list[Any], step: int = 0) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Event(wall_time=time.time(), step=step, summary=Summary(value=values))
