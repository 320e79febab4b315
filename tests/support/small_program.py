"""A small program in the place of a role's own: it connects to the servers that it needs, announces itself, and pauses.

It imports the standard library only, to start within a fraction of a second.
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
    """Files that keep small programs, by the names of their logs, from getting ready, or make them give up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def close(self, name: str) -> None:
        """Keep a program from getting ready, until `open`."""
        (self._folder / name).touch()

    def open(self, name: str) -> None:
        """Let it get ready."""
        (self._folder / name).unlink()

    def is_open(self, name: str) -> bool:
        return not (self._folder / name).exists()

    def make_impatient(self, name: str) -> None:
        """Have a program exit as soon as it cannot connect to a server that it needs, instead of trying again."""
        (self._folder / f"{name}-impatient").touch()

    def is_patient(self, name: str) -> bool:
        return self.is_open(f"{name}-impatient")


def await_others(name: str, gates: Gates, needed: Sequence[str]) -> None:
    """Wait until the gate is open and all that is needed answers. Raises SystemExit."""
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
