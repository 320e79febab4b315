"""Real processes in tests: started, awaited by their output, and always ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import psutil

from support.fork_server import FORK_SERVER, Child, can_fork

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, timeout: float = 30.0, interval: float = 0.01) -> T:
    """Call `condition` until it returns a true value, and return that value.

    Use it for conditions without an event to wait for. After `timeout` seconds an AssertionError is raised, with
    the message "not within 30 s: `what`".
    """
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}")
        time.sleep(interval)


def project_command(name: str) -> str:
    """Return the path of a command of the project in the virtual environment of the tests."""
    path = Path(sys.executable).with_name(name)
    assert path.is_file(), f"{path} does not exist: run `make setup`"
    return str(path)


class Running:
    """A process in its own session, so that its children can be found and ended with it.

    Standard output is read line by line. Standard error goes to a file. Both stay readable after the end.
    """

    def __init__(
        self,
        command: Sequence[str],
        stderr: Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> None:
        self.stderr_path = stderr
        variables = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self.process: subprocess.Popen[bytes] | Child
        with stderr.open("wb") as errors:
            if not fresh and can_fork(command, variables):
                self.process = FORK_SERVER.start(list(command), errors, cwd, variables)
            else:
                self.process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    cwd=cwd,
                    env=variables,
                    start_new_session=True,
                )
        self._lines: list[str] = []
        self._closed = False
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, name=f"stdout of {self.pid}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code as in subprocess: None while the process runs, and minus the signal's number after a signal."""
        return self.process.poll()

    @property
    def lines(self) -> list[str]:
        """Lines that the process has printed so far."""
        with self._news:
            return list(self._lines)

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text(errors="replace")

    def wait_for_line(self, text: str, timeout: float = 60.0) -> str:
        """Return the first line of standard output that contains `text`. Wait until it is printed."""
        deadline = time.monotonic() + timeout
        seen = 0
        with self._news:
            while True:
                for line in self._lines[seen:]:
                    if text in line:
                        return line
                seen = len(self._lines)
                left = deadline - time.monotonic()
                if self._closed or left <= 0:
                    reason = "its output ended" if self._closed else f"waited {timeout:g} s"
                    raise AssertionError(f"no line with {text!r}: {reason}\n{self.report()}")
                self._news.wait(left)

    def wait_for_address(self, timeout: float = 120.0) -> str:
        """Return the HOST:PORT of the line that a server prints when it is ready."""
        return self.wait_for_line(" listening on ", timeout).rsplit(" ", 1)[-1]

    def wait(self, timeout: float = 30.0) -> int:
        """Wait for the process to end by itself and return its exit code. `lines` is then complete."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout:g} s\n{self.report()}") from None
        self._reader.join(5)  # bounded: a child that still runs may hold the same output open
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, not to its children."""
        self.process.send_signal(number)

    def interrupt_group(self) -> None:
        """Send SIGINT to the process and its children at once, as Ctrl-C in a terminal does."""
        self.signal_group(signal.SIGINT)

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and to its children at once, as process managers do."""
        os.killpg(self.pid, number)

    def stop(self, number: int = signal.SIGTERM, timeout: float = 30.0) -> int:
        """Ask the process to end, and return its exit code."""
        if self.returncode is None:
            self.send_signal(number)
        return self.wait(timeout)

    def kill(self) -> None:
        """Kill the process as a crash does, but not its children."""
        self.process.kill()
        self.process.wait()

    def session(self) -> list[psutil.Process]:
        """Return the living processes of its session: itself and its descendants there, without zombies."""
        living = []
        for candidate in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if os.getsid(candidate.pid) == self.pid and candidate.status() != psutil.STATUS_ZOMBIE:
                    living.append(candidate)
        return living

    def children(self) -> list[psutil.Process]:
        """Return the other living processes of its session. For an RLX server, these are its workers."""
        return [process for process in self.session() if process.pid != self.pid]

    def report(self) -> str:
        """Return the command, the exit code and the last output, for messages of failed assertions."""
        if self._closed:  # the output ends slightly before the process
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        tail = "\n".join(self.stderr.splitlines()[-40:])
        return f"{self.process.args} exit code {self.returncode}\nstdout: {self._lines}\nstderr:\n{tail}"

    def end(self) -> None:
        """Kill all processes of the session. Repeated calls have no effect."""
        for process in self.session():
            with suppress(psutil.Error):
                process.kill()
        self.process.wait()
        self._reader.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            with self._news:
                self._lines.append(raw.decode(errors="replace").rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._closed = True
            self._news.notify_all()


class Processes:
    """A context that starts processes and ends all of them at its exit, the last one first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[Running] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for running in reversed(self._running):
            running.end()

    @property
    def running(self) -> list[Running]:
        """All started processes, in the order of their starts."""
        return list(self._running)

    def start(
        self,
        *command: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> Running:
        """Start a command. For a command of the project, the name suffices.

        `fresh`: do not fork the process from the fork server, for tests of the process's memory, threads or start.
        """
        first = str(command[0])
        if first.startswith("relaax"):
            first = project_command(first)
        stderr = self._folder / f"{len(self._running)}-{Path(first).name}.stderr"
        running = Running([first, *map(str, command[1:])], stderr, cwd, env, fresh)
        self._running.append(running)
        return running

    def start_python(self, code: str, *arguments: str, env: Mapping[str, str] | None = None) -> Running:
        """Start Python with a few lines of code."""
        return self.start(sys.executable, "-c", code, *arguments, env=env)

    def start_server(
        self, *command: str | Path, timeout: float = 120.0, env: Mapping[str, str] | None = None, fresh: bool = False
    ) -> tuple[Running, str]:
        """Start a server and wait until it is ready; return it and its HOST:PORT."""
        running = self.start(*command, env=env, fresh=fresh)
        return running, running.wait_for_address(timeout)
