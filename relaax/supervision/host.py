"""Where the processes of a run are started: on this machine, or elsewhere."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from relaax.configuration import roles
from relaax.configuration.roles import RLX_SERVER, Addresses, Role, Sections
from relaax.server.address import name_of, reserve
from relaax.supervision.process import Process, Supervised


class Host(ABC):
    """What starts processes and knows how they find each other."""

    start_seconds = 90.0
    """Seconds within which a server announces where it listens."""
    reserves = True
    """Whether addresses are known before the processes start, so that they may start in any order."""

    def __init__(self) -> None:
        self._processes: Mapping[str, Sequence[Supervised]] = {}

    def count(self, role: Role, sections: Sections) -> int:
        """Return the number of processes of a role."""
        return role.count(sections)

    @abstractmethod
    def process(self, role: Role, number: int, name: str, log: Path, secrets: Mapping[str, str]) -> Supervised:
        """Return the process of this number of a role, which is not started yet."""

    @abstractmethod
    def prepare(self, processes: Mapping[str, Sequence[Supervised]]) -> None:
        """Prepare for the start of the processes of all roles. Does nothing the second time."""

    @abstractmethod
    def release(self) -> None:
        """Give back what `prepare` took, after the last process has ended."""

    @abstractmethod
    def bind(self, role: Role, number: int, process: Supervised) -> str:
        """Return the address at which a server is to listen."""

    @abstractmethod
    def told(self) -> Addresses:
        """Return the addresses as processes are told of them on their command lines."""

    @abstractmethod
    def rlx_servers(self) -> str:
        """Return the address that environments are told."""

    @abstractmethod
    def configuration(self, file: Path) -> str:
        """Return the file of the configuration as processes are told of it. `file`: in the run directory."""

    def options(self, role: Role) -> list[str]:
        """Return further options of a server's command."""
        return []

    def wanted(self, role: Role) -> int | None:
        """Return how many processes of a role there should be from now on; None: as many as there are."""
        return None

    def retire(self, process: Supervised) -> None:  # noqa: B027 - nothing to give back is the usual case
        """Give back the place of a process that has ended and is not started again."""

    @abstractmethod
    def refresh(self) -> None:
        """Tell processes of changed addresses."""

    def actual(self, role: Role) -> list[str]:
        """Return HOST:PORT of each process of a role: of one that has not announced itself, where it will be, if that
        is known, and otherwise a port that is none.
        """
        return [process.address or "127.0.0.1:0" for process in self._processes.get(role.name, ())]


class ThisMachine(Host):
    """Processes of this machine. Addresses that must not change are reserved from before the first start."""

    def __init__(self) -> None:
        super().__init__()
        self._reserved: dict[str, list[socket.socket]] = {}

    def process(self, role: Role, number: int, name: str, log: Path, secrets: Mapping[str, str]) -> Supervised:
        return Process(name, log, server=role.module is not None, secrets=secrets)

    def prepare(self, processes: Mapping[str, Sequence[Supervised]]) -> None:
        self._processes = processes
        if not self._reserved:
            self._reserved = {
                role.name: [reserve("127.0.0.1:0") for _ in processes[role.name]]
                for role in roles.servers()
                if role.reserved
            }

    def release(self) -> None:
        for reserved in self._reserved.values():
            for sock in reserved:
                sock.close()
        self._reserved = {}

    def bind(self, role: Role, number: int, process: Supervised) -> str:
        return self.actual(role)[number]

    def told(self) -> Addresses:
        return {role.name: self.actual(role) for role in roles.servers()}

    def rlx_servers(self) -> str:
        return self.actual(RLX_SERVER)[0]

    def configuration(self, file: Path) -> str:
        return str(file)

    def refresh(self) -> None:
        """Do nothing: addresses do not change, or whoever is told of them is started later."""

    def actual(self, role: Role) -> list[str]:
        if role.name in self._reserved:
            return [name_of(sock) for sock in self._reserved[role.name]]
        return super().actual(role)
