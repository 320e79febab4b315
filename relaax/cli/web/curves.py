"""The scalars of a run as bounded curves, read from its event files while they grow."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relaax.metrics.event_records import complete_records

MAX_POINTS = 1_000
"""Maximum number of points of a curve. If there are more, neighbours are merged into their mean."""
MAX_CURVES = 500
"""Maximum number of curves. Later names are left out."""
EVALUATION = "evaluation"
"""Folder of the evaluations' event files, below the metrics."""


@dataclass(slots=True)
class Curve:
    """Points of one scalar: number of the change, global step, value. Steps increase.

    `rewritten`: number of the last change other than an addition. A reader with older points must replace them all.
    """

    points: list[tuple[int, int, float]] = field(default_factory=list)
    rewritten: int = 0
    merged: int = 1
    """How many values each point has, except the last ones."""
    pending: list[float] = field(default_factory=list)
    latest: tuple[int, float] | None = None

    def add(self, change: int, step: int, value: float) -> None:
        """Add a value. Points at the same or a later step are from before a crash, and are dropped."""
        if self.latest is not None and self.latest[0] >= step:
            self.cut(change, step)
        self.latest = step, value
        self.pending.append(value)
        if len(self.pending) < self.merged:
            return
        self.points.append((change, step, sum(self.pending) / len(self.pending)))
        self.pending.clear()
        if len(self.points) > MAX_POINTS:
            self.points = [
                (change, later[1], (earlier[2] + later[2]) / 2)
                for earlier, later in zip(self.points[::2], self.points[1::2], strict=False)
            ]
            self.rewritten, self.merged = change, 2 * self.merged

    def cut(self, change: int, step: int) -> None:
        """Drop the points from this step on."""
        kept = [point for point in self.points if point[1] < step]
        if len(kept) < len(self.points):
            self.points, self.rewritten = kept, change
        self.pending.clear()
        self.latest = (kept[-1][1], kept[-1][2]) if kept else None

    def since(self, change: int) -> tuple[bool, list[tuple[int, float]]]:
        """Return whether all points are returned, and the points (step, value) after this change."""
        whole = change < self.rewritten or change == 0
        return whole, [(step, value) for at, step, value in self.points if whole or at > change]


class Curves:
    """Curves by the name of their scalar. `changes`: number of changes so far."""

    def __init__(self) -> None:
        self._curves: dict[str, Curve] = {}
        self.changes = 0
        self.left_out = 0
        """Number of values that were left out, because there were too many names."""

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add values of one global step. Values that are not finite leave a gap."""
        self.changes += 1
        for name, value in values.items():
            if name not in self._curves and len(self._curves) >= MAX_CURVES:
                self.left_out += 1
            elif math.isfinite(value):
                self._curves.setdefault(name, Curve()).add(self.changes, step, value)

    def cut(self, step: int) -> None:
        """Drop all points from this step on, which a crash undid."""
        self.changes += 1
        for curve in self._curves.values():
            curve.cut(self.changes, step)

    def clear(self) -> None:
        """Drop all curves."""
        self.changes += 1
        self._curves.clear()

    def of(self, name: str) -> list[tuple[int, float]]:
        """Return the points of one curve; none if there is no such curve."""
        return self._curves[name].since(0)[1] if name in self._curves else []

    def since(self, change: int) -> dict[str, Any]:
        """Return what changed after change number `change`, for JSON: by name, the points and the latest value."""
        found: dict[str, Any] = {}
        for name, curve in self._curves.items():
            whole, points = curve.since(change)
            if points or whole:
                found[name] = {"whole": whole, "points": points, "latest": curve.latest}
        return found


class EventFolder:
    """The event files of a folder and of its folder `evaluation`. Each `read` continues where the last one ended."""

    def __init__(self, folder: Path, curves: Curves) -> None:
        self._folder = folder
        self._curves = curves
        self._files: dict[Path, _GrowingFile] = {}

    def read(self) -> None:
        """Read the records that were appended since the last call. After a replaced file, all curves are new."""
        found = [
            path
            for folder in (self._folder, self._folder / EVALUATION)
            for path in sorted(folder.glob("events.out.tfevents.*"))
        ]
        if any(file.is_replaced() for file in self._files.values()):
            self._files.clear()
            self._curves.clear()
        for path in found:
            for record in self._files.setdefault(path, _GrowingFile(path)).records():
                self._add(record)

    def _add(self, record: bytes) -> None:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        try:
            event = Event.FromString(record)
        except DecodeError:
            return
        if event.session_log.status == SessionLog.START:
            self._curves.cut(event.step)
        # Text, such as the configuration, has no simple value.
        values = {value.tag: value.simple_value for value in event.summary.value if value.HasField("simple_value")}
        if values:
            self._curves.add(event.step, values)


class _GrowingFile:
    """A file of records to which another process appends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._inode: int | None = None

    def is_replaced(self) -> bool:
        """Return whether the path names another file than before, or none."""
        try:
            found = self._path.stat()
        except OSError:
            return True
        return self._inode not in (None, found.st_ino) or found.st_size < self._position

    def records(self) -> Iterator[bytes]:
        """Yield the complete records after the last one that was read. The file ends at an invalid length."""
        try:
            if self._inode is not None and self._path.stat().st_size == self._position:
                return
            with self._path.open("rb") as file:
                self._inode = os.fstat(file.fileno()).st_ino
                file.seek(self._position)
                for record, self._position in complete_records(file):
                    yield record
        except OSError:
            return  # the next call continues here
