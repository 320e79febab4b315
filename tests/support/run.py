"""`relaax run` as a real process, with a view of all processes that it starts."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil

from support.processes import Processes, Running, wait_until
from support.service import RELAAX, status_of

PATIENCE = 120.0  # seconds; an idle machine needs only a few
SMALL = ("--clients", "2", "--envs-per-client", "2", "--no-progress")


class Run:
    """One `relaax run`. `everything`: its living processes, including itself."""

    def __init__(self, start: Callable[[], Running], directory: Path) -> None:
        self.directory = directory
        self._seen: dict[psutil.Process, None] = {}  # not by id, which a later process may reuse
        logs = directory / "logs"  # of an earlier run in the same directory
        self._said_before = {path.stem: _size(path) for path in logs.iterdir()} if logs.is_dir() else {}
        self.running = start()

    def _log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    @property
    def everything(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.running.pid)
            self._seen |= dict.fromkeys((root, *root.children(recursive=True)))
        return [process for process in self._seen if is_alive(process)]

    def of(self, part: str) -> list[psutil.Process]:
        """Return its living processes of a part: client, worker, learner, rlx-, replay- or parameter-server."""
        return [process for process in self.everything if self._part(process) == part]

    def _part(self, process: psutil.Process) -> str | None:
        with contextlib.suppress(psutil.Error):
            command, parent = " ".join(process.cmdline()), process.ppid()
            if "end_with_parent.py" in command:
                return None
            for part in ("parameter-server", "replay-server", "learner"):
                if f"relaax.server.{part.replace('-', '_')}.main" in command:
                    return part
            if "relaax.server.rlx_server.main" in command:
                return "rlx-server" if parent == self.running.pid else "worker"
            if "main.py" in command:
                return None if "main.py check " in command else "client"
        return None

    @property
    def status(self) -> Any:
        """Status of its parameter server."""
        return status_of(self.parameter_server_address)

    @property
    def parameter_server_address(self) -> str:
        return self.address_of("parameter-server")

    def address_of(self, name: str) -> str:
        """Return the address of a server by the name of its log. Waits until the server listens."""
        inode, size = self._said_before.get(name, (0, 0))

        def said() -> str | None:
            log = self._log(name)
            data = log.read_bytes()[size if _size(log)[0] == inode else 0 :] if log.exists() else b""
            addresses = [line.rpartition(" ")[2] for line in data.decode().splitlines() if " listening on " in line]
            assert self.running.returncode is None, self.running.report()
            return addresses[-1] if addresses else None

        return wait_until(said, f"the {name} listens", PATIENCE)

    def wait_for(self, condition: Callable[[Any], bool], what: str, timeout: float = PATIENCE) -> Any:
        """Return the first status that meets `condition`. Retries while the parameter server is unavailable."""

        def holds() -> Any:
            assert self.running.returncode is None, self.running.report()
            with contextlib.suppress(grpc.RpcError):
                status = self.status
                return status if condition(status) else None

        return wait_until(holds, what, timeout, interval=0.1)

    def wait_for_steps(self, more_than: int) -> Any:
        return self.wait_for(lambda status: status.global_step > more_than, f"more than {more_than} steps")

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return summary

    def log(self, name: str) -> str:
        return self._log(name).read_text(errors="replace")

    def expect_nothing_left(self, timeout: float = 30.0) -> None:
        wait_until(lambda: not self.everything, f"all processes have ended, not {self.everything}", timeout)

    def end(self) -> None:
        for process in self.everything:
            with contextlib.suppress(psutil.Error):
                process.kill()


def _size(path: Path) -> tuple[int, int]:
    """Return the inode and the size of a file; zeros if it does not exist."""
    if not path.exists():
        return 0, 0
    found = path.stat()
    return found.st_ino, found.st_size


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


class Runs:
    """A factory of runs that kills all their processes at the end."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes = processes
        self._folder = folder
        self._runs: list[Run] = []

    def start(
        self, *options: str | Path, config: str | Path = "da3c_gym_cartpole", directory: Path | None = None
    ) -> Run:
        directory = directory or self._folder / "run"
        command = (*RELAAX, "run", config, "--run-dir", directory, *options)
        self._runs.append(Run(lambda: self._processes.start(*command), directory))
        return self._runs[-1]

    def end(self) -> None:
        for run in reversed(self._runs):
            run.end()


@contextmanager
def all_ended(processes: Processes, folder: Path) -> Iterator[Runs]:
    runs = Runs(processes, folder)
    try:
        yield runs
    finally:
        runs.end()
