"""What a server holds, to be compared before and after: nothing that clients do may leave anything behind."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import psutil

from support.processes import Running, wait_until

MEGABYTE = 2**20


@dataclass(frozen=True)
class Resources:
    """Of the server's own process, its workers apart."""

    megabytes: float  # anonymous memory: its unique set grows and shrinks with who else has mapped the same libraries
    descriptors: int
    shared_memory: frozenset[str]


def resources_of(server: Running) -> Resources:
    """Once no worker is left, buried ones included."""
    process = psutil.Process(server.pid)
    wait_until(lambda: not server.children() and not process.children(), "the workers have ended and were buried", 60)
    maps = process.memory_maps()
    mapped = {m.path for m in maps if m.path.startswith(("/dev/shm", "/SYSV"))}
    anonymous = sum(m.anonymous for m in maps) / MEGABYTE
    return Resources(anonymous, descriptors(server), frozenset(mapped | shared_memory()))


def shared_memory() -> set[str]:
    """Segments on this machine that no living process has made: left behind."""
    table = Path("/proc/sysvipc/shm")
    segments = [line.split() for line in table.read_text().splitlines()[1:]] if table.is_file() else []
    return {f"System V segment {row[1]}" for row in segments if not psutil.pid_exists(int(row[4]))}


def descriptors(server: Running) -> int:
    """Open in the server's own process."""
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def expect_no_leak(server: Running, before: Resources, megabytes: float = 8.0) -> Resources:
    """Wait until descriptors are given back, then compare the rest. `megabytes`: that Python may take and keep."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: descriptors(server) <= before.descriptors, "descriptors were given back", 60)
    after = resources_of(server)
    # Fewer are no leak: a worker is buried a moment before its pipe is closed, which `before` may have counted.
    assert after.descriptors <= before.descriptors, (before, after)
    assert after.shared_memory <= before.shared_memory, (before, after)
    assert after.megabytes < before.megabytes + megabytes, (before, after)
    return after


def expect_clean_log(server: Running) -> None:
    """Protocol errors are there to be logged; a traceback is a mistake of the server's."""
    log = server.stderr
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:5000]
