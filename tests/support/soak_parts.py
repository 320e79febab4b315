"""The processes of a soak: restarted as by a supervisor, and ended in order."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from support.processes import Processes, Running, wait_until
from support.run import is_alive

Command = list[str]


@dataclass(frozen=True)
class Exit:
    """The exit of a process. `killed`: whether the soak killed it."""

    part: str
    code: int
    killed: bool
    report: str

    @property
    def without_store(self) -> bool:
        """Whether a server ended with an error because it could not read its store at its start. It is restarted."""
        words = tuple(f"relaax-parameter-server: cannot {verb} " for verb in ("list", "read", "write"))
        return self.code == 1 and any(line.startswith(words) for line in self.report.splitlines())


class Part:
    """A process and its restarts. A server keeps its address."""

    def __init__(self, processes: Processes, name: str, command: Callable[[], Command]) -> None:
        self.name = name
        self.lives: list[Running] = []
        self.killed: set[int] = set()
        self._processes = processes
        self._command = command

    @property
    def running(self) -> Running:
        """The process that runs, or ran last."""
        return self.lives[-1]

    def start(self) -> Running:
        """Start or restart the process."""
        self.lives.append(self._processes.start(*self._command()))
        return self.running

    def victim(self) -> psutil.Process | None:
        """Return the process that a fault hits; None if it is dead."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.running.pid)
            return process if is_alive(process) else None
        return None


class Parts:
    """All processes of a soak. A thread restarts processes that have ended, and records every worker that it finds."""

    def __init__(self) -> None:
        self.parts: dict[str, Part] = {}
        self.exits: list[Exit] = []
        self.workers: dict[tuple[int, float], psutil.Process] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, part: Part) -> Part:
        """Add a part to be restarted when it ends."""
        self.parts[part.name] = part
        return part

    def watch(self) -> None:
        """Start the thread that restarts parts."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def unwatch(self) -> None:
        """Stop the thread that restarts parts."""
        self._stop.set()
        if self._thread:
            self._thread.join()

    def living_workers(self) -> list[psutil.Process]:
        """Return the worker processes that are alive, including workers of dead servers."""
        self._see_workers()
        return [worker for worker in list(self.workers.values()) if is_alive(worker)]

    def end(self, names: list[str], seconds: float) -> dict[str, int]:
        """Terminate the named parts together, wait, and return their exit codes. Raises AssertionError if one hangs."""
        begun = time.monotonic()
        for name in names:
            with contextlib.suppress(ProcessLookupError):
                self.parts[name].running.process.terminate()
        codes = {}
        for name in names:
            codes[name] = self.parts[name].running.wait(max(0.1, begun + seconds - time.monotonic()))
            del self.parts[name]
        return codes

    def expect_no_process(self, started: list[Running]) -> None:
        """Raise AssertionError if a started process, or a process of its session, is still running."""
        wait_until(lambda: not self.living_workers(), "every worker has ended", 60)
        for running in started:
            assert not running.session(), f"processes {running.session()} of {running.process.args} are still running"

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self._see_workers()
            for part in list(self.parts.values()):
                code = part.running.returncode
                if code is not None:
                    killed = part.running.pid in part.killed
                    self.exits.append(Exit(part.name, code, killed, "" if killed else part.running.report()))
                    part.start()

    def _see_workers(self) -> None:
        server = self.parts.get("rlx-server")
        if server is None:
            return
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(server.running.pid).children():
                self.workers[child.pid, child.create_time()] = child
