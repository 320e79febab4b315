"""The warnings in the logs of a run, read while they grow."""

from __future__ import annotations

import json
import os
import re
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import Any

MAX_WARNINGS = 100
MAX_TEXT = 500
"""Maximum number of characters of a warning."""
FIRST_BYTES = 2**18
"""Maximum number of bytes at the end of a log that are read first."""
NEXT_BYTES = 2**20
"""Maximum number of bytes that are read of a log at once later. What exceeds it is left out."""
LEVELS = ("WARNING", "ERROR", "CRITICAL")
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} (\w+) +\[\d+\] \S+: (.*)")


class LogWarnings:
    """The last warnings and errors of all logs in a folder. Each call of `read` continues where the last one ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._positions: dict[Path, tuple[int, int]] = {}  # inode and position
        self._found: deque[dict[str, Any]] = deque(maxlen=MAX_WARNINGS)
        self.number = 0
        """Number of warnings found so far."""

    def read(self) -> None:
        """Read the lines that were appended since the last call."""
        new: list[dict[str, Any]] = []
        for path in sorted(self._folder.glob("*.log")):
            for line in self._new_lines(path):
                found = parsed(line)
                if found is not None:
                    new.append({"log": path.stem, **found})
        for one in sorted(new, key=lambda one: str(one["time"])):
            self.number += 1
            self._found.append({"number": self.number, **one})

    def newest(self) -> list[dict[str, Any]]:
        """Return the last warnings, for JSON, in the order in which they were found."""
        return list(self._found)

    def _new_lines(self, path: Path) -> list[str]:
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                inode, position = self._positions.get(path, (status.st_ino, 0))
                if inode != status.st_ino or position > status.st_size:
                    position = 0
                limit = NEXT_BYTES if path in self._positions else FIRST_BYTES
                begin = max(position, status.st_size - limit)
                file.seek(begin)
                data = file.read(limit)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        self._positions[path] = status.st_ino, begin + end
        return data[:end].decode(errors="replace").splitlines()


def parsed(line: str) -> dict[str, Any] | None:
    """Return time, level and text of a line of a log, as text or JSON; None if it is no warning."""
    if line.startswith("{"):
        try:
            entry = json.loads(line)
            level, text, time = str(entry["level"]), str(entry["message"]), datetime.fromisoformat(entry["time"])
        except (ValueError, KeyError, TypeError):
            return None
    else:
        found = _LINE.match(line)
        if found is None:
            return None
        level, text, time = found[2], found[3], datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").astimezone()
    if level not in LEVELS:
        return None
    return {"time": time.timestamp(), "level": level.lower(), "text": text[:MAX_TEXT]}
