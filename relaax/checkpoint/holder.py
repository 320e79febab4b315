"""Identify the process that holds a lease, and tell whether it is known to be dead."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Holder:
    """A process. `pid` is valid within `boot` and `pid_namespace`; `started` distinguishes processes with one pid.

    They are empty if the system does not say; then nobody is ever known to be dead.
    """

    holder: str
    host: str
    boot: str
    pid_namespace: str
    pid: int
    started: str

    @classmethod
    def here(cls) -> Holder:
        """Return the calling process. Each call returns another holder: a process may acquire several leases in its
        life.
        """
        pid = os.getpid()
        return cls(uuid.uuid4().hex, socket.gethostname(), _boot(), _pid_namespace(), pid, _process(pid)[0])

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Holder:
        """Read what `as_json` returned. Raises TypeError, KeyError and ValueError."""
        texts = {field.name: str(value[field.name]) for field in fields(cls) if field.name != "pid"}
        return cls(pid=int(value["pid"]), **texts)

    def as_json(self) -> dict[str, Any]:
        """Return it for a file."""
        return asdict(self)

    def is_dead(self) -> bool:
        """Return whether the process is known to have ended: only those of this boot and this pid namespace can be.

        A process that has ended and was not waited for yet is dead.
        """
        if not self.boot or not self.started or (self.boot, self.pid_namespace) != (_boot(), _pid_namespace()):
            return False
        started, state = _process(self.pid)
        return started != self.started or state in ("Z", "X")

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _process(pid: int) -> tuple[str, str]:
    """Return a process's start, in clock ticks since boot, and its state; empty if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # a program's name may be any bytes
    except OSError:
        return "", ""
    # The name of the program, in parentheses, may hold anything.
    words = text.rpartition(")")[2].split()
    return words[19], words[0]
