"""Checks that a server leaks no resources: compare its resources before and after clients were connected."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import psutil

from support.processes import Running, wait_until

MEGABYTE = 2**20


@dataclass(frozen=True)
class Resources:
    """The resources of a server's own process, without its workers."""

    megabytes: float  # anonymous; the unique set size would depend on other processes that map the same libraries
    descriptors: int
    shared_memory: frozenset[str]


def resources_of(server: Running) -> Resources:
    """Wait until all workers have ended and were reaped, and return the server's resources."""
    process = psutil.Process(server.pid)
    wait_until(lambda: not server.children() and not process.children(), "the workers have ended and were reaped", 60)
    maps = process.memory_maps()
    mapped = {m.path for m in maps if m.path.startswith(("/dev/shm", "/SYSV"))}
    anonymous = sum(m.anonymous for m in maps) / MEGABYTE
    return Resources(anonymous, descriptors(server), frozenset(mapped | shared_memory()))


def shared_memory() -> set[str]:
    """Return the shared-memory segments on this machine whose creator has ended."""
    table = Path("/proc/sysvipc/shm")
    segments = [line.split() for line in table.read_text().splitlines()[1:]] if table.is_file() else []
    return {f"System V segment {row[1]}" for row in segments if not psutil.pid_exists(int(row[4]))}


def descriptors(server: Running) -> int:
    """Return the number of open descriptors of the server's own process."""
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def expect_no_leak(server: Running, before: Resources, megabytes: float = 8.0) -> Resources:
    """Wait until descriptors are closed, then compare all resources. `megabytes`: allowed growth."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: descriptors(server) <= before.descriptors, "descriptors were closed", 60)
    after = resources_of(server)
    # There may be fewer: a worker is reaped a moment before its pipe is closed, and `before` may include that pipe.
    assert after.descriptors <= before.descriptors, (before, after)
    assert after.shared_memory <= before.shared_memory, (before, after)
    assert after.megabytes < before.megabytes + megabytes, (before, after)
    return after


def expect_clean_log(server: Running) -> None:
    """Check that the log has no traceback. Protocol errors of clients are logged without one."""
    log = server.stderr
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:5000]
