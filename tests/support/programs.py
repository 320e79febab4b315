"""The programs of environments/ as real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import relaax

ROOT = Path(relaax.__file__).parent.parent
PATIENCE = 120.0  # seconds for what takes a few on an idle machine


def _command(family: str, *arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", str(ROOT / "environments" / family / "main"), *arguments]


def _variables(**variables: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if name != "RELAAX_TOKEN"}
    return ours | {"PYTHONPATH": str(ROOT)} | variables


def program(family: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run environments/FAMILY/main to its end."""
    return subprocess.run(
        _command(family, *arguments),
        env=_variables(**variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


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
