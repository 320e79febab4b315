"""Hosts of the processes of a run, such as this machine."""

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
    """A place where the processes of a run are started. It supplies the processes and their addresses."""

    start_seconds = 90.0
    """Seconds within which a server must announce its address."""
    reserves = True
    """Whether addresses are known before the processes start, so that they can start in any order."""

    def __init__(self) -> None:
        self._processes: Mapping[str, Sequence[Supervised]] = {}

    def count(self, role: Role, sections: Sections) -> int:
        """Return the number of processes of a role."""
        return role.count(sections)

    @abstractmethod
    def process(self, role: Role, number: int, name: str, log: Path, secrets: Mapping[str, str]) -> Supervised:
        """Return a process of a role, not yet started. `number`: its index among the processes of the role."""

    @abstractmethod
    def prepare(self, processes: Mapping[str, Sequence[Supervised]]) -> None:
        """Prepare the start of the processes of all roles. A second call has no effect."""

    @abstractmethod
    def release(self) -> None:
        """Release the resources that `prepare` acquired, after the last process has ended."""

    @abstractmethod
    def bind(self, role: Role, number: int, process: Supervised) -> str:
        """Return the address that a server must listen on."""

    @abstractmethod
    def server_addresses(self) -> Addresses:
        """Return the addresses of the servers, for the command lines of other processes."""

    @abstractmethod
    def rlx_servers(self) -> str:
        """Return the address of the RLX servers, for environments."""

    @abstractmethod
    def configuration(self, file: Path) -> str:
        """Return the path of the configuration, for command lines. `file`: the configuration in the run directory."""

    def options(self, role: Role) -> list[str]:
        """Return further options of a server's command."""
        return []

    def wanted(self, role: Role) -> int | None:
        """Return the number of processes that a role should have; None keeps the present number."""
        return None

    def retire(self, process: Supervised) -> None:  # noqa: B027 - most hosts have nothing to release
        """Release the resources of a process that has ended and is not restarted."""

    @abstractmethod
    def refresh(self) -> None:
        """Send changed addresses to the processes."""

    def actual(self, role: Role) -> list[str]:
        """Return HOST:PORT of each process of a role.

        Before a process has announced its address, the port is 0, unless the address is reserved.
        """
        return [process.address or "127.0.0.1:0" for process in self._processes.get(role.name, ())]


class ThisMachine(Host):
    """The local machine as a host. Addresses that must not change are reserved before the first start."""

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
                for role in roles.listening_roles()
                if role.reserved
            }

    def release(self) -> None:
        for reserved in self._reserved.values():
            for sock in reserved:
                sock.close()
        self._reserved = {}

    def bind(self, role: Role, number: int, process: Supervised) -> str:
        return self.actual(role)[number]

    def server_addresses(self) -> Addresses:
        return {role.name: self.actual(role) for role in roles.listening_roles()}

    def rlx_servers(self) -> str:
        return self.actual(RLX_SERVER)[0]

    def configuration(self, file: Path) -> str:
        return str(file)

    def refresh(self) -> None:
        """Do nothing: addresses are reserved, or are read by processes that start later."""

    def actual(self, role: Role) -> list[str]:
        if role.name in self._reserved:
            return [name_of(sock) for sock in self._reserved[role.name]]
        return super().actual(role)
