"""A small substitute for the program of a role.

It connects to the servers that it needs, reports that it is ready, and waits. It imports the standard library only, to
start within a fraction of a second.
"""

from __future__ import annotations

import argparse
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

PAUSE = 0.01


class Gates:
    """Files that block the start of small programs or make them give up. Programs are named by their logs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def close(self, name: str) -> None:
        """Block the start of a program until `open`."""
        (self._folder / name).touch()

    def open(self, name: str) -> None:
        """Unblock the start of a program."""
        (self._folder / name).unlink()

    def is_open(self, name: str) -> bool:
        return not (self._folder / name).exists()

    def make_impatient(self, name: str) -> None:
        """Make a program exit instead of retrying if it cannot connect to a server that it needs."""
        (self._folder / f"{name}-impatient").touch()

    def is_patient(self, name: str) -> bool:
        return self.is_open(f"{name}-impatient")


def await_others(name: str, gates: Gates, needed: Sequence[str]) -> None:
    """Wait until the gate is open and all needed servers accept connections. Raises SystemExit."""
    while not gates.is_open(name):
        time.sleep(PAUSE)
    for address in needed:
        while not _answers(address):
            if not gates.is_patient(name):
                raise SystemExit(f"{address} does not answer")
            time.sleep(PAUSE)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 10).close()
    except OSError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("--bind")
    parser.add_argument("--name")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--needs", nargs="*")
    options = parser.parse_args()
    await_others(options.name, Gates(options.folder), options.needs)
    if options.bind is None:
        print("it is ready", flush=True)
        signal.pause()
    host, _, port = options.bind.rpartition(":")
    with socket.create_server((host, int(port))) as listener:
        print(f"it is listening on {host}:{listener.getsockname()[1]}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
