"""Processes that end with this one, however it ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

# Reads numbers of processes, or of groups with a minus, until its input ends: with this program, or by `close`.
# The folder can be removed when nobody writes to it any more.
_SCRIPT = """
all=
while read -r one; do all="$all $one"; done
[ -z "$all" ] || kill -s KILL -- $all 2>/dev/null
[ -z "$1" ] || until rm -rf "$1"; do sleep 0.1; done
"""


class Watchman:
    """Ends what it is told of when this program has ended, be it killed, and removes `folder`, if any. POSIX only."""

    def __init__(self, folder: str = "") -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", _SCRIPT, "sh", folder],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal for this program's group is none for it
        )

    def watch(self, number: int) -> None:
        """Let a process end with this one, or a group by its negative number."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n".encode())
        self._process.stdin.flush()

    def close(self) -> None:
        """End what is watched now, and wait until it has been told to."""
        self._process.communicate()


def children() -> Iterator[int]:
    """Yield the processes that this one has started, where the system says so (Linux)."""
    for path in Path("/proc/self/task").glob("*/children"):
        yield from map(int, path.read_text().split())
