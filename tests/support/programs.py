"""The programs of environments/ as real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

import relaax
from support.nursery import NURSERY, suits
from support.rlx_peer import Conversation, RlxPeer

ROOT = Path(relaax.__file__).parent.parent
PATIENCE = 120.0  # seconds for what takes a few on an idle machine


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
    if not suits(command, environ):
        return subprocess.run(
            command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    with tempfile.TemporaryFile() as errors:
        child = NURSERY.start(command, errors, cwd, environ)
        with child.stdout:
            said = child.stdout.read().decode()
        code = child.wait(PATIENCE)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, said, errors.read().decode())


@contextmanager
def running(family: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """environments/FAMILY/main in a process group of its own, killed at the end if it still lives."""
    process = subprocess.Popen(
        _command(family, *arguments),
        env=_variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def interrupt_group(process: subprocess.Popen[str]) -> None:
    """What Ctrl-C does: SIGINT to every process of the group."""
    os.killpg(process.pid, signal.SIGINT)


def signalled(family: str, name: str, number: signal.Signals) -> tuple[int, dict[psutil.Process, str]]:
    """Signal a program of two environments after its first step: its exit code, and its processes with their names."""
    under_way = threading.Event()

    def script(talk: Conversation) -> None:
        talk.welcome()
        while True:
            talk.answer()
            under_way.set()

    with RlxPeer(script) as peer, running(family, peer.address, name, "2") as process:
        assert under_way.wait(PATIENCE)
        belonging = {one: one.name() for one in psutil.Process(process.pid).children(recursive=True)}
        process.send_signal(number)
        process.communicate(timeout=PATIENCE)
    return process.returncode, belonging
