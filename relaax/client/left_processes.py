"""The processes that environments started, and did not end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

_SECONDS = 2.0
_OF_PYTHON = "multiprocessing"  # its resource tracker and fork server, which end with this process


def left_processes() -> list[str]:
    """Return the processes below this one, as "process 12 (sleep)", that do not end within two seconds.

    Linux only: elsewhere none is found.
    """
    until = time.monotonic() + _SECONDS
    while (left := list(_below(os.getpid()))) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def _below(pid: int) -> Iterator[str]:
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _read(listed).split():
            status = dict(line.partition(":\t")[::2] for line in _read(Path(f"/proc/{child}/status")).splitlines())
            is_alive = not status.get("State", "Z").startswith(("Z", "X"))
            if is_alive and _OF_PYTHON not in _read(Path(f"/proc/{child}/cmdline")):
                yield f"process {child} ({status['Name']})"
            yield from _below(int(child))


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # it has ended
        return ""
