"""The programs of environments/ as real processes."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import psutil
import pytest

import relaax
from relaax.client.command import UsageError
from support.fork_server import FORK_SERVER, can_fork
from support.rlx_peer import PeerConnection, RlxPeer

ROOT = Path(relaax.__file__).parent.parent
PATIENCE = 120.0  # seconds; an idle machine needs only a few


def _command(family: str, *arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", str(ROOT / "environments" / family / "main"), *arguments]


def _variables(**variables: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if name != "RELAAX_TOKEN"}
    return ours | {"PYTHONPATH": str(ROOT)} | variables


def program(family: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run environments/FAMILY/main to its end."""
    return completed(_command(family, *arguments), _variables(**variables))


def completed(command: list[str], environ: dict[str, str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of the project or a program of an environment to its end."""
    if not can_fork(command, environ):
        return subprocess.run(
            command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    with tempfile.TemporaryFile() as errors:
        child = FORK_SERVER.start(command, errors, cwd, environ)
        with child.stdout:
            said = child.stdout.read().decode()
        code = child.wait(PATIENCE)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, said, errors.read().decode())


def refusal(main: ModuleType, *line: str) -> str:
    """Call the main function of a program in this process with arguments that it refuses, and return its error."""
    described = main.parser()

    def refuse(message: str) -> NoReturn:
        raise UsageError(message)

    described.error = refuse
    with pytest.raises(UsageError) as refused:
        main.main(described.parse_args(line))
    return str(refused.value)


class Started:
    """A running program, forked from the fork server, with the part of `subprocess.Popen` that the tests use."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        reading, writing = os.pipe()
        with os.fdopen(writing, "wb") as errors:
            self._child = FORK_SERVER.start(command, errors, None, environ)
        self.stdout = io.TextIOWrapper(self._child.stdout)
        self.stderr = os.fdopen(reading)
        self.pid = self._child.pid
        self.poll, self.wait = self._child.poll, self._child.wait
        self.send_signal, self.terminate = self._child.send_signal, self._child.terminate

    @property
    def returncode(self) -> int | None:
        return self._child.poll()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return the rest of both outputs when the program has ended."""
        with ThreadPoolExecutor(2) as pool:
            outputs = [pool.submit(stream.read) for stream in (self.stdout, self.stderr)]
            self.wait(timeout)
            return outputs[0].result(timeout), outputs[1].result(timeout)

    def close(self) -> None:
        self.stdout.close()
        self.stderr.close()


@contextmanager
def running(family: str, *arguments: str) -> Iterator[Started]:
    """Start environments/FAMILY/main in its own process group, and kill it at the end of the block if it still runs."""
    process = Started(_command(family, *arguments), _variables())
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.close()


def interrupt_group(process: Started) -> None:
    """Send SIGINT to every process of the group, as Ctrl-C does."""
    os.killpg(process.pid, signal.SIGINT)


def signalled(family: str, name: str, number: signal.Signals) -> tuple[int, dict[psutil.Process, str]]:
    """Signal a program of two environments after its first step. Return its exit code, and its children's names."""
    under_way = threading.Event()

    def script(conn: PeerConnection) -> None:
        conn.welcome()
        while True:
            conn.answer()
            under_way.set()

    with RlxPeer(script) as peer, running(family, peer.address, name, "2") as process:
        assert under_way.wait(PATIENCE)
        belonging = {one: one.name() for one in psutil.Process(process.pid).children(recursive=True)}
        process.send_signal(number)
        process.communicate(timeout=PATIENCE)
    return process.returncode, belonging
