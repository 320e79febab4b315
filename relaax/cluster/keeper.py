"""The owner of one process on a machine. It does not depend on Ray, which runs it as an actor.

The controller of a training is also such a process. It reads requests from files in its keeper's folder, and writes its
reports there.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaax.files import write_whole
from relaax.supervision.process import Process, open_directly

REQUESTED = "asked.json"
"""File of the requested numbers of processes, by role."""
STATUS = "status.json"
"""File of the controller's report; see `relaax.cluster.machines.report`."""
PANEL = "panel"
"""File of the panel that a terminal would show."""
TURN_SECONDS = 1.0


class Control:
    """The controller's access to the files of requests and reports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._requested: dict[str, int] = {}
        self._next = 0.0

    @property
    def panel(self) -> Path:
        """File of the panel."""
        return self._folder / PANEL

    def turn(self, report: Callable[[], Mapping[str, Any]]) -> Mapping[str, int]:
        """Write the report once a second, and return the requested numbers of processes, by role."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + TURN_SECONDS
            with contextlib.suppress(OSError):  # training continues without a report
                write_whole(self._folder / STATUS, [json.dumps(report()).encode()])
            with contextlib.suppress(FileNotFoundError):
                self._requested = json.loads((self._folder / REQUESTED).read_text(encoding="utf-8"))
        return self._requested


HOST = "{host}"
"""Placeholder in a command for the address of the keeper's machine."""
FOLDER = "{folder}"
"""Placeholder in a command and in files for the keeper's folder."""
LOG_BYTES = 256 * 1024
"""Maximum bytes of the log in one snapshot, and maximum bytes of all metrics files in it."""
METRICS = "metrics"
"""Subfolder of the metrics files, which snapshots copy to the run directory."""
FIGURE_SECONDS = 1.0
_SCRAPE_TIMEOUT_SECONDS = 2.0
_FIGURE = re.compile(r"^(relaax_rlx_server_(?:workers|free_places|refusals_total)(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """The state of a process, as `Process` documents it, with the part of its log after the previous snapshot.

    `host`: address of its machine. `new_metrics`: for each metrics file, the offset and bytes of its new part.
    `figures`: Prometheus metrics of an RLX server's connections, by name.
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
    new_metrics: Mapping[str, tuple[int, bytes]]
    figures: Mapping[str, float]


class Keeper:
    """Owner of one process: starts its command, keeps its log and reports its state.

    `host`: the address of this machine for other machines. `secrets`: tokens by environment variable.
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
        """Write `files` (content by name) into the folder and start the command."""
        self.put(files)
        with self._commands:
            self._process.start([self._expanded(word) for word in command])

    def put(self, files: Mapping[str, str]) -> None:
        """Replace files of the folder, each atomically."""
        for name, content in files.items():
            write_whole(self._folder / name, [self._expanded(content).encode()])

    def read(self, name: str) -> str:
        """Return the text of a file of the folder; empty if the file does not exist."""
        file = self._folder / name
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def snapshot(self, log_end: int, ends: Mapping[str, int] | None = None) -> ProcessSnapshot:
        """Return the state of the process, with its log after offset `log_end` and its metrics files after `ends`."""
        process = self._process
        code = process.exit_code()
        done = process.is_done  # reads the rest of its output
        piece = b""
        if self._log.exists():
            with self._log.open("rb") as log:
                log.seek(log_end)
                piece = log.read(LOG_BYTES)
        return ProcessSnapshot(
            code,
            process.address,
            process.announced,
            done,
            process.failed,
            process.pid,
            piece,
            log_end + len(piece),
            self._host,
            self._new_metrics(ends or {}),
            self._scraped() if code is None else {},
        )

    def _new_metrics(self, ends: Mapping[str, int]) -> dict[str, tuple[int, bytes]]:
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

    def _scraped(self) -> dict[str, float]:
        """Return the figures of the status port, at most one second old unless it does not respond."""
        url, now = self._process.status_url, time.monotonic()
        if url is not None and now - self._figures_at >= FIGURE_SECONDS:
            self._figures_at = now
            with (
                contextlib.suppress(OSError),
                open_directly(f"{url}/metrics", _SCRAPE_TIMEOUT_SECONDS) as answer,
            ):
                self._figures = {name: float(value) for name, value in _FIGURE.findall(answer.read().decode())}
        return self._figures if url is not None else {}

    def terminate(self) -> None:
        """Send SIGTERM to the process."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process and its children."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process if it still runs, and remove the folder."""
        self.kill()
        self._process.wait(5.0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _expanded(self, text: str) -> str:
        return text.replace(HOST, self._host).replace(FOLDER, str(self._folder))
