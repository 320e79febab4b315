"""Files by which a training's controller is told what to do, and tells how it is. They are in its keeper's folder."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from relaax.files import write_whole

ASKED = "asked.json"
"""Numbers of processes by role, as somebody asks for."""
STATUS = "status.json"
"""What there is; see `relaax.cluster.report`."""
PANEL = "panel"
"""What a terminal would show."""
TURN_SECONDS = 1.0


class Control:
    """The controller's end of these files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked: dict[str, int] = {}
        self._next = 0.0

    @property
    def panel(self) -> Path:
        """Return the file of the panel."""
        return self._folder / PANEL

    def turn(self, report: Callable[[], Mapping[str, Any]]) -> Mapping[str, int]:
        """Write the report if it is time to, and return the numbers asked for."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + TURN_SECONDS
            with contextlib.suppress(OSError):  # training goes on if nobody can see it
                write_whole(self._folder / STATUS, [json.dumps(report()).encode()])
            with contextlib.suppress(FileNotFoundError):
                self._asked = json.loads((self._folder / ASKED).read_text(encoding="utf-8"))
        return self._asked
