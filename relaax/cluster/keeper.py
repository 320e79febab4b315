"""What owns one ordinary process on a machine. Ray makes an actor of it; it knows nothing of Ray."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relaax.direct_http import open_directly
from relaax.files import write_whole
from relaax.supervision.process import Process

HOST = "{host}"
"""Stands for the keeper's own address in a command."""
FOLDER = "{folder}"
"""Stands for the folder of its files in a command, and in the files."""
LOG_BYTES = 256 * 1024
"""At most so much of a log is told at once, and of the other files."""
METRICS = "metrics"
"""The folder within the keeper's whose files grow elsewhere too."""
FIGURE_SECONDS = 1.0
_FIGURES_SECONDS_TO_ANSWER = 2.0
_FIGURE = re.compile(r"^(relaax_rlx_server_(?:workers|free_places|refusals_total)(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Look:
    """What is to be seen of a process: as `Process` says, and a piece of its log from where the last one ended.

    `host`: the address of its machine. `grown`: pieces of its metrics' files by name, each with where it begins.
    `figures`: what an RLX server says of its connections, as Prometheus names it.
    """

    exit_code: int | None
    address: str | None
    announced: bool
    done: bool
    failed: str
    pid: int | None
    log: bytes
    log_end: int
    host: str
    grown: Mapping[str, tuple[int, bytes]]
    figures: Mapping[str, float]


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
        self._figures: dict[str, float] = {}
        self._figures_at = 0.0

    def start(self, command: Sequence[str], files: Mapping[str, str]) -> None:
        """Start a command, with these files in its folder, by name."""
        self.put(files)
        with self._commands:
            self._process.start([self._filled(word) for word in command])

    def put(self, files: Mapping[str, str]) -> None:
        """Replace files, each as a whole."""
        for name, content in files.items():
            write_whole(self._folder / name, [self._filled(content).encode()])

    def read(self, name: str) -> str:
        """Return a file of its folder; empty if there is none."""
        file = self._folder / name
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def look(self, log_end: int, ends: Mapping[str, int] | None = None) -> Look:
        """Return what is to be seen; of the log what follows `log_end`, the end of the last piece, and of the metrics'
        files what follows `ends`.
        """
        process = self._process
        code = process.exit_code()
        done = process.is_done  # takes in the rest of its output
        piece = b""
        if self._log.exists():
            with self._log.open("rb") as log:
                log.seek(log_end)
                piece = log.read(LOG_BYTES)
        return Look(
            code,
            process.address,
            process.announced,
            done,
            process.failed,
            process.pid,
            piece,
            log_end + len(piece),
            self._host,
            self._grown(ends or {}),
            self._counted() if code is None else {},
        )

    def _grown(self, ends: Mapping[str, int]) -> dict[str, tuple[int, bytes]]:
        pieces, left = {}, LOG_BYTES
        folder = self._folder / METRICS
        for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
            name = str(file.relative_to(folder))
            begin = ends.get(name, 0)
            if left and file.is_file() and file.stat().st_size > begin:
                with file.open("rb") as opened:
                    opened.seek(begin)
                    pieces[name] = begin, opened.read(left)
                left -= len(pieces[name][1])
        return pieces

    def _counted(self) -> dict[str, float]:
        """Return the figures of the server's status, at most a second old; the last ones if it does not answer."""
        url, now = self._process.status_url, time.monotonic()
        if url is not None and now - self._figures_at >= FIGURE_SECONDS:
            self._figures_at = now
            with (
                contextlib.suppress(OSError),
                open_directly(f"{url}/metrics", _FIGURES_SECONDS_TO_ANSWER) as answer,
            ):
                self._figures = {name: float(value) for name, value in _FIGURE.findall(answer.read().decode())}
        return self._figures if url is not None else {}

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

    def _filled(self, text: str) -> str:
        return text.replace(HOST, self._host).replace(FOLDER, str(self._folder))
