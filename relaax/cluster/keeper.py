"""What owns one ordinary process on a machine. Ray makes an actor of it; it knows nothing of Ray."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relaax.atomic_file import write_whole
from relaax.supervision.process import Process

HOST = "{host}"
"""Stands for the keeper's own address in a command."""
FOLDER = "{folder}"
"""Stands for the folder of its files in a command, and in the files."""
LOG_BYTES = 256 * 1024
"""At most so much of a log is told at once."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is to be seen of a process: as `Process` says, and a piece of its log from where the last one ended."""

    exit_code: int | None
    address: str | None
    announced: bool
    done: bool
    failed: str
    pid: int | None
    log: bytes
    log_end: int


class Keeper:
    """Starts a command, keeps its log, tells what became of it, and ends with it.

    `host`: the address of this machine that others reach. `secrets`: tokens by environment variable.
    """

    def __init__(self, name: str, host: str, server: bool, secrets: Mapping[str, str]) -> None:
        self._host = host
        self._folder = Path(tempfile.mkdtemp(prefix="relaax-keeper-"))
        self._log = self._folder / "log"
        self._process = Process(name, self._log, server=server, secrets=secrets)
        self._commands = threading.Lock()

    def start(self, command: Sequence[str], files: Mapping[str, str]) -> None:
        """Start a command, with these files in its folder, by name."""
        self.put(files)
        with self._commands:
            self._process.start([self._filled(word) for word in command])

    def put(self, files: Mapping[str, str]) -> None:
        """Replace files, each as a whole."""
        for name, content in files.items():
            write_whole(self._folder / name, [self._filled(content).encode()])

    def look(self, log_end: int) -> Look:
        """Return what is to be seen; of the log what follows `log_end`, the end of the last piece."""
        process = self._process
        code = process.exit_code()
        done = process.is_done  # takes in the rest of its output
        piece = b""
        if self._log.exists():
            with self._log.open("rb") as log:
                log.seek(log_end)
                piece = log.read(LOG_BYTES)
        return Look(
            code, process.address, process.announced, done, process.failed, process.pid, piece, log_end + len(piece)
        )

    def terminate(self) -> None:
        """Send SIGTERM to the process."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process and those that it started."""
        self._process.kill()

    def close(self) -> None:
        """Kill what is left, and remove the folder."""
        self.kill()
        self._process.wait(5.0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def place(self) -> tuple[str, int]:
        """Return the name of this machine, and the id of this process."""
        return socket.gethostname(), os.getpid()

    def _filled(self, text: str) -> str:
        return text.replace(HOST, self._host).replace(FOLDER, str(self._folder))
