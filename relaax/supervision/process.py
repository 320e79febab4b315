"""One process of a run: start, watch and stop it."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

_log = logging.getLogger(__name__)

_END_WITH_PARENT = Path(__file__).with_name("end_with_parent.py")
LISTENS = " listening on "
READY = " ready"
STATUS = " status at "
DONE = " done"
FAILED = " last checkpoint failed: "
READ_SECONDS = 1.0  # to read the last output of an ended process: its children may keep the pipe open
QUICK_FAILURE_SECONDS = 20.0
MAX_FAILURES = 3
EXIT_REFUSED = 2
EXIT_ENVIRONMENT = 4
"""Exit code of an environment program if the environment called sys.exit()."""
# One thread each: the processes of a run already use all cores.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
_LINES = 5
_REFUSAL_LINES = 24  # the message may list many checkpoints
_LINE_BYTES = 65536  # a progress bar may print gigabytes without a newline
_TAIL_BYTES = 65536  # a log may have gigabytes
_PAGE = re.compile(rb"open (https?://[!-~]+)\s*\Z")
_SENTENCE = re.compile(r"^  ((?:relaax-[a-z-]+|[^\s:]+/main): [^\n]*(?:\n {3}[^\n]*)*)\Z", re.MULTILINE)
"""The last error that a program printed with `relaax.console.print_error`."""


class StartError(Exception):
    """A process did not start, or failed repeatedly.

    `refused` is its message if it refused its configuration (exit code 2).
    """

    def __init__(self, message: str, refused: str | None = None) -> None:
        super().__init__(message)
        self.refused = refused


def ending_with_parent(command: Sequence[str]) -> list[str]:
    """Return the command wrapped so that its process ends when this process ends."""
    return [sys.executable, "-S", "-E", str(_END_WITH_PARENT), str(os.getpid()), *command]


def environment_of(secrets: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment variables for a process. `secrets` replace the tokens of this process; None keeps them."""
    from relaax.configuration.layers import SECRETS, without_variables  # slow, and completion loads this module

    inherited = without_variables(os.environ)
    if secrets is None:
        return {**_ENVIRONMENT, **inherited}
    without_tokens = {name: value for name, value in inherited.items() if name not in SECRETS}
    return {**_ENVIRONMENT, **without_tokens, **secrets}


def end_of_log(log: Path, begin: int) -> str:
    """Return the last 64 KiB of the output that begins at this byte of `log`. Raises OSError."""
    with log.open("rb") as file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return file.read().decode("utf-8", errors="replace")


def open_directly(url: str, timeout: float) -> Any:
    """Open a page of a process on this machine like `urllib.request.urlopen`, but without a proxy."""
    from urllib.request import ProxyHandler, build_opener

    return build_opener(ProxyHandler({})).open(url, timeout=timeout)


class Supervised(ABC):
    """A process of a run, on any host. `Process` documents `address` and `failed`."""

    def __init__(self, name: str, log: Path, server: bool) -> None:
        """`log`: file of its output; existing content belongs to earlier runs. `server`: whether the process announces
        that it is ready.
        """
        self.name = name
        self.log = log
        self._server = server
        self.address: str | None = None
        self.failed = ""
        self.page: str | None = None
        """URL of the page that an environment program asks the user to open, if any."""
        self.restarts = 0
        self.was_ready = False
        """Whether the process was ready at some time before the last restart."""
        self._started_at = 0.0
        self._blocked_at = -math.inf
        self._failures = 0
        self._warned = False
        self._log_begins = log.stat().st_size if log.exists() else 0

    @abstractmethod
    def start(self, command: Sequence[str]) -> None:
        """Start the process."""

    @property
    @abstractmethod
    def announced(self) -> bool:
        """Whether the process has announced that it is ready since its last start."""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Process id; None before the start, or if the process is not on this machine."""

    @abstractmethod
    def exit_code(self) -> int | None:
        """Return the exit code: None while the process runs, negative if a signal ended it."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether the process printed that it is done and then ended with exit code 0."""

    @property
    def is_ready(self) -> bool:
        """Whether the process runs and has announced that it is ready, or is done."""
        return self.announced if self.exit_code() is None else self.is_done

    def mark_blocked(self) -> None:
        """Record that a process that this one needs is not ready.

        The time limit of this process starts again, and if it ends, it does not count as failed.
        """
        self._blocked_at = time.monotonic()

    def is_late(self, seconds: float) -> bool:
        """Return whether a running server is not ready `seconds` after everything that it needs was ready."""
        deadline = max(self._started_at, self._blocked_at) + seconds
        return self._server and time.monotonic() > deadline and self.exit_code() is None and not self.announced

    def late_error(self, seconds: float) -> StartError:
        """Return the error for a server that is not ready in time."""
        return self.start_error(f"did not start within {seconds:g} s")

    def restart(self, command: Sequence[str], attempts: int = MAX_FAILURES) -> None:
        """Restart the process after it ended. Raises StartError if it has failed `attempts` times in a row.

        It failed if all that it needs was ready, but it ended within 20 s or, as a server, before it was ready.
        """
        if self._blocked_at < self._started_at:
            quick = time.monotonic() - self._started_at < QUICK_FAILURE_SECONDS
            failed = quick or (self._server and not self.announced)
            self._failures = self._failures + 1 if failed else 0
        if self._failures >= attempts or self.exit_code() == EXIT_REFUSED:
            raise self.start_error("did not start" if attempts == 1 else "fails repeatedly")
        self._restart(command)

    def _restart(self, command: Sequence[str]) -> None:
        self.restarts += 1
        self.was_ready = self.was_ready or self.announced
        self.start(command)

    @abstractmethod
    def terminate(self) -> None:
        """Send SIGTERM to the process."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the process and its children."""

    @abstractmethod
    def wait(self, timeout: float) -> bool:
        """Return whether the process has ended within `timeout` seconds."""

    def _warn_once(self, file: Path, error: OSError) -> None:
        """Log the first failed write only: on a full disk every line fails."""
        if not self._warned:
            self._warned = True
            _log.warning("%s cannot be written: %s; the output of %s is lost", file, error.strerror, self.name)

    def start_error(self, what: str) -> StartError:
        """Return the error for a process that did not start or has ended. Its text is `what` and the end of the log."""
        refused = self.exit_code() == EXIT_REFUSED
        sentence = self.printed_error()
        text = sentence or self.log_tail(_REFUSAL_LINES if refused else _LINES)
        gap = " " if sentence else "\n"
        return StartError(f"{self.name} {what}:{gap}{text}", text if refused else None)

    def printed_error(self) -> str:
        """Return the error at the end of the log; empty if the log does not end with one."""
        found = _SENTENCE.search(self.log_tail(_REFUSAL_LINES))
        return found[1] if found else ""

    def log_tail(self, lines: int = _LINES) -> str:
        """Return the last lines of the log, without the output of earlier runs."""
        try:
            text = end_of_log(self.log, self._log_begins)
            if not text.strip():
                with self.log.open("ab", buffering=0) as appended:
                    appended.write(b"\n")  # fails if the disk is full, which explains the empty log
        except OSError as error:
            return f"  (no log: {self.log}: {error.strerror})"
        return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])


class Process(Supervised):
    """A command whose output goes to a log file, in a session of its own so that Ctrl-C does not reach it.

    When an environment program ends, its child processes are killed: a simulator may not notice the end.
    A server prints `... listening on HOST:PORT`, which sets `address`, or `... ready` if it has no port. It prints
    `... done` when it is done. If it cannot write its last checkpoint, it prints the reason, which sets `failed`.
    If the log cannot be written, the output is lost and the process continues.
    """

    def __init__(self, name: str, log: Path, server: bool = False, secrets: Mapping[str, str] | None = None) -> None:
        """`secrets`: tokens by environment variable. They replace the tokens of this process."""
        super().__init__(name, log, server)
        self._secrets = secrets
        self._done = False
        self._popen: subprocess.Popen[bytes] | None = None
        self._ended: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._announced = False
        self.status_url: str | None = None
        """URL of its status port, after the process has announced it."""

    def start(self, command: Sequence[str]) -> None:
        self._announced = False
        self.status_url = None
        self._started_at = time.monotonic()
        self.failed = ""
        self._done = False
        with self._open_log() as log:
            self._popen = subprocess.Popen(
                ending_with_parent(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                # A server drops output that it cannot write. An environment program would fail.
                stderr=log if self._server else subprocess.STDOUT,
                start_new_session=True,
                env=environment_of(self._secrets),
            )
        self._reader = threading.Thread(target=self._read, args=(self._popen,), name=self.name, daemon=True)
        self._reader.start()

    def _open_log(self) -> BinaryIO:
        try:
            return self.log.open("ab", buffering=0)
        except OSError as error:
            self._warn_once(self.log, error)
            return open(os.devnull, "ab", buffering=0)

    def _read(self, popen: subprocess.Popen[bytes]) -> None:
        # Children of a killed process can keep its output open after the next start.
        assert popen.stdout is not None
        with popen.stdout as output, self._open_log() as log:
            line = b""
            while part := output.readline(_LINE_BYTES):
                line = (line + part)[-_LINE_BYTES:]  # an announcement may follow a progress bar on the same line
                if part.endswith(b"\n") or len(part) < _LINE_BYTES:
                    self._read_line(line, popen)
                    line = b""
                try:
                    log.write(part)
                except OSError as error:  # keep reading: a full pipe would block the process
                    self._warn_once(self.log, error)

    def _read_line(self, line: bytes, popen: subprocess.Popen[bytes]) -> None:
        if self._server and popen is self._popen:
            self._read_announcement(line.decode(errors="replace"))
        elif page := _PAGE.match(line):
            self.page = page[1].decode()

    def _read_announcement(self, line: str) -> None:
        if not self._announced and (LISTENS in line or line.rstrip().endswith(READY)):
            self._announced = True
            self.address = line.rpartition(LISTENS)[2].strip() if LISTENS in line else ""
        elif STATUS in line:
            self.status_url = line.rpartition(STATUS)[2].strip()
        elif FAILED in line:
            self.failed = line.partition(FAILED)[2].strip()
        elif line.rstrip().endswith(DONE):
            self._done = True

    @property
    def announced(self) -> bool:
        if not self._announced:
            self._drain()
        return self._announced

    @property
    def pid(self) -> int | None:
        return self._popen.pid if self._popen else None

    def exit_code(self) -> int | None:
        popen = self._popen  # another thread may restart the process
        code = popen.poll() if popen else None
        if popen is not None and code is not None:
            self._kill_children(popen)
        return code

    def _kill_children(self, ended: subprocess.Popen[bytes]) -> None:
        """Kill the children of an ended environment program, once: its process id may be reused later."""
        if self._server or ended is self._ended:  # the children of a server end by themselves
            return
        self._ended = ended
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(ended.pid, signal.SIGKILL)  # `start` made it the leader of its group

    @property
    def is_done(self) -> bool:
        if self.exit_code() != 0:
            return False
        self._drain()
        return self._done

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._popen is None or self.exit_code() is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if number == signal.SIGKILL:
                os.killpg(self._popen.pid, number)
            else:
                self._popen.send_signal(number)

    def wait(self, timeout: float) -> bool:
        if self._popen is None:
            return True
        try:
            self._popen.wait(max(0.0, timeout))
        except subprocess.TimeoutExpired:
            return False
        self._kill_children(self._popen)
        self._drain()
        return True

    def _drain(self) -> None:
        """Read the remaining output of the ended process, for at most one second and only once."""
        if self._popen is None or self._reader is None or self.exit_code() is None:
            return
        reader, self._reader = self._reader, None
        if reader.ident is not None:
            reader.join(READ_SECONDS)
        elif self._popen.stdout is not None:  # a signal arrived before the reader thread started
            self._popen.stdout.close()

    def log_tail(self, lines: int = _LINES) -> str:
        self._drain()
        return super().log_tail(lines)
