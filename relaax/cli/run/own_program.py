"""Messages about environment programs that do not connect, and about files that are no such programs."""

from __future__ import annotations

import re
import time
from pathlib import Path

from relaax.bundled import bundled_folder
from relaax.cli.run.plan import Plan
from relaax.supervision.process import Supervised

CONNECT_SECONDS = 30.0
"""Seconds without any connection after which the reason is logged; training may begin later."""
_CLASS = re.compile(r"^class (\w+)\((?:\w+\.)?Env\b", re.MULTILINE)


class FirstConnection:
    """A watch over the first connection of a run's environments."""

    def __init__(self, plan: Plan, seconds: float = CONNECT_SECONDS) -> None:
        self._plan = plan
        self._seconds = seconds
        self._deadline: float | None = time.monotonic() + seconds

    def overdue(self, has_connected: bool, client: Supervised, address: str | None) -> str | None:
        """Return a message if no environment has connected in time; None otherwise, and after the first message."""
        if has_connected:
            self._deadline = None
        if self._deadline is None or time.monotonic() < self._deadline:
            return None
        self._deadline = None
        main = self._plan.environment_main
        said = client.last_words(1).strip()
        what = f"no environment has connected in {self._seconds:g} s"
        if not main.is_relative_to(bundled_folder("environments")):
            what += f"; {main.name} must connect to its first argument (sys.argv[1] in Python), {address}"
        return f"{what}; {f'it printed: {said}; ' if said else ''}see {client.log}"


def never_connected(main: Path) -> str:
    """Return a message about programs that ended, and reported no error, before any of them had connected."""
    made = environment_class(main)
    way_out = f"; for the class in it, use --environment {made}" if made else ""
    return f"{main.name} ended without connecting: a program connects to its first argument, HOST:PORT{way_out}"


def environment_class(file: Path) -> str | None:
    """Return MODULE:CLASS of the first class of gymnasium.Env in a file of the working directory, None without any."""
    try:
        found = _CLASS.search(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return f"{file.stem}:{found[1]}" if found and file.absolute().parent == Path.cwd() else None
