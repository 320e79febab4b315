"""Who holds a lease: a process, told apart from every other one, and whether it is known to be dead."""

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
    """`boot` and `pid_namespace` tell within what `pid` means anything; `started` tells processes of one pid apart.

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
        """The process that asks. Each call gives another holder: a process may have several leases in its life."""
        pid = os.getpid()
        return cls(uuid.uuid4().hex, socket.gethostname(), _boot(), _pid_namespace(), pid, _process(pid)[0])

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Holder:
        """From what `as_json` gave. Raises TypeError, KeyError and ValueError."""
        texts = {field.name: str(value[field.name]) for field in fields(cls) if field.name != "pid"}
        return cls(pid=int(value["pid"]), **texts)

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    def is_dead(self) -> bool:
        """Whether it is known to have ended. Only of processes of this boot and this pid namespace anything is known.

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
    """When a process was started, in clock ticks since boot, and its state; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return "", ""
    # The name of the program, in parentheses, may hold anything.
    words = text.rpartition(")")[2].split()
    return words[19], words[0]
