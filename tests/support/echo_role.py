"""A role that only a test defines. Its process sends the configured word on each connection."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import yaml
from pydantic import Field

from relaax.configuration import SECTIONS, Section, roles
from relaax.configuration.roles import Addresses, Restart, Role, Sections


class EchoSection(Section):
    """The configuration section `relaax-echo`."""

    bind: str = Field("127.0.0.1:0", description="Address to listen on.")
    word: str = Field("hello", description="Word to send.")
    echoes: int = Field(1, description="Number of processes.")


def count(sections: Sections) -> int:
    section = sections["relaax-echo"]
    assert isinstance(section, EchoSection)
    return section.echoes


def echo_arguments(addresses: Addresses, number: int, count: int) -> list[str]:
    return ["--position", f"{number} of {count}, {addresses['parameter-server'][0]}"]


ECHO = Role(
    name="echo",
    title="an echo",
    section="relaax-echo",
    model=EchoSection,
    command="relaax-echo",
    module="support.echo_role",
    count=count,
    restart=Restart.ALWAYS,
    stop_seconds=lambda _: 20.0,
    stop_key=None,
    tokens=(),
    arguments=echo_arguments,
)


def with_echo() -> tuple[Role, ...]:
    """Return the table of roles with this role."""
    return (*roles.ROLES[:2], ECHO, *roles.ROLES[2:])


def add() -> None:
    """Add the role to the table of this process."""
    roles.ROLES = with_echo()
    SECTIONS[ECHO.section] = ECHO.model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--bind", required=True)
    parser.add_argument("--position", required=True)
    options = parser.parse_args()
    section = yaml.safe_load(options.config.read_text())["relaax-echo"]
    host, _, port = options.bind.rpartition(":")
    with socket.create_server((host, int(port))) as listener:
        print(f"echo listening on {host}:{listener.getsockname()[1]}", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(f"{section['word']} {options.position}\n".encode())


if __name__ == "__main__":
    main()
