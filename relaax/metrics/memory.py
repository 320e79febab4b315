"""Memory that this process may use: of the machine, and within the limits of its control groups (containers)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

_OWN_GROUPS = Path("/proc/self/cgroup")
_MOUNTS = Path("/sys/fs/cgroup")


class _Version(NamedTuple):
    """The file names of a version of control groups."""

    mount: str
    limit: str
    used: str
    reclaimable: str


_V1 = _Version("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Version("", "memory.max", "memory.current", "inactive_file")


def available_memory() -> int:
    """Return the bytes that processes beside this one could still take, without swap."""
    return min([psutil.virtual_memory().available, *(max(0, limit - used) for limit, used in _limits())])


def total_memory() -> int:
    """Return the bytes that all processes beside this one may take together."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _limits())])


def _limits() -> Iterator[tuple[int, int]]:
    """Yield limit and use of each group that this process belongs to and that has a limit."""
    for version, path in _groups():
        mount = _MOUNTS / version.mount
        # Within a container the path may be the host's, and the mount is the container's own group.
        for folder in {mount, *(mount / parent for parent in (path, *path.parents))}:
            with contextlib.suppress(OSError, ValueError):
                limit = int((folder / version.limit).read_text())  # ValueError if it is "max"
                used = int((folder / version.used).read_text())
                yield limit, used - _reclaimable(folder, version.reclaimable)


def _groups() -> Iterator[tuple[_Version, Path]]:
    with contextlib.suppress(OSError):
        for line in _OWN_GROUPS.read_text(errors="replace").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0" or "memory" in controllers.split(","):
                yield _V2 if number == "0" else _V1, Path(path.lstrip("/"))


def _reclaimable(folder: Path, name: str) -> int:
    """Return the bytes of the page cache that the kernel drops before it kills a process of the group."""
    for line in (folder / "memory.stat").read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
