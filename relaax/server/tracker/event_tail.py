"""Reading the scalars of a TensorBoard run while it is written."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from relaax.metrics.event_records import complete_records
from relaax.metrics.writer import newest_number

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value of a metric. `time`: Unix time in seconds."""

    name: str
    value: float
    time: float
    step: int


class Position(NamedTuple):
    """The bytes of a file that have been read; the files before it have been read completely."""

    file: str = ""
    offset: int = 0


class EventTail:
    """The scalars of the event files in `folder` after `position`. The folder need not exist yet."""

    def __init__(self, folder: Path, position: Position | None = None) -> None:
        self._folder = folder
        self.position = position or Position()

    def read(self, limit: int) -> list[Scalar]:
        """Return the next scalars, in the order of their writing, of at most `limit` events. Raises OSError.

        An event that is not completely written yet is returned by a later call.
        """
        found: list[Scalar] = []
        for name in self._files():
            offset = self.position.offset if name == self.position.file else 0
            self.position = Position(name, offset)
            for event, end in _events(self._folder / name, offset):
                found += _scalars(event)
                self.position, limit = Position(name, end), limit - 1
                if limit <= 0:
                    return found
        return found

    def _files(self) -> list[str]:
        """Return the names of the files from the position on. A file before the last one is complete."""
        try:
            names = [path.name for path in self._folder.iterdir() if newest_number([path.name])]
        except FileNotFoundError:
            return []
        return sorted(name for name in names if name >= self.position.file)


def _events(path: Path, offset: int) -> Iterator[tuple[Any, int]]:
    """Yield each complete event after `offset`, with the offset of its end."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    with path.open("rb") as file:
        file.seek(offset)
        for record, end in complete_records(file):
            try:
                yield Event.FromString(record), end
            except DecodeError as error:
                _log.warning("%s is damaged at byte %d, and the rest of it is skipped: %s", path, end, error)
                return


def _scalars(event: Any) -> list[Scalar]:
    if not event.HasField("summary"):
        return []
    return [
        Scalar(value.tag, value.simple_value, event.wall_time, event.step)
        for value in event.summary.value
        if value.WhichOneof("value") == "simple_value"
    ]


def thinned(scalars: list[Scalar], seconds: float) -> list[Scalar]:
    """Return the last scalar of each metric in each period of `seconds`, in the order of writing."""
    last = {(scalar.name, scalar.time // seconds): scalar for scalar in scalars}
    return sorted(last.values(), key=lambda scalar: scalar.time)
