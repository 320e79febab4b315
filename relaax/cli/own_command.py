"""Commands of `relaax` that another command runs: their output in a file, their results, and their end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relaax.supervision.process import end_of_log, ending_with_parent

POLL_SECONDS = 0.2
PROGRESS_SECONDS = 60.0
KILL_SECONDS = 120.0
"""Time from SIGTERM to SIGKILL. It is long because a last checkpoint may be large."""
_LINES = 10


def run_command(
    log: Path, arguments: list[str], shall_end: Callable[[], bool], report: Callable[[str], None] | None = None
) -> tuple[int, str]:
    """Run `relaax ARGUMENTS` with its output appended to `log`; return its exit code and the end of the output.

    When `shall_end` returns true, the process is terminated: a training then writes a checkpoint. `report` receives
    the last line of the output every PROGRESS_SECONDS, once there is one.
    """
    with log.open("ab") as file:
        begin = file.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            ending_with_parent([sys.executable, "-m", "relaax.cli.main", *arguments]),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = _wait(process, shall_end, lambda: _last_lines(log, begin), report)
    return code, "\n".join(_last_lines(log, begin))


def _last_lines(log: Path, begin: int) -> list[str]:
    """Return the last lines of the output that begins at this byte of `log`."""
    return end_of_log(log, begin).splitlines()[-_LINES:]


def _wait(
    process: subprocess.Popen[bytes],
    shall_end: Callable[[], bool],
    end_of_output: Callable[[], list[str]],
    report: Callable[[str], None] | None,
) -> int:
    terminated_at: float | None = None
    report_at = time.monotonic() + PROGRESS_SECONDS
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_SECONDS)
        if terminated_at is None and shall_end():
            terminated_at = time.monotonic()
            process.terminate()  # a process that was started in the background ignores SIGINT
        elif terminated_at is not None and time.monotonic() - terminated_at > KILL_SECONDS:
            process.kill()
        if report is not None and time.monotonic() >= report_at:
            for line in end_of_output()[-1:]:
                report(line.strip())
            report_at = time.monotonic() + PROGRESS_SECONDS


def stop_on_signals(stopping: threading.Event, sentence: str) -> None:
    """Set `stopping` at SIGINT, SIGTERM and SIGHUP, and print the sentence at the first. Ignored signals stay so."""

    def stop(*_: object) -> None:
        if not stopping.is_set():
            print(sentence, flush=True)
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, stop)


def read_result(file: Path) -> dict[str, Any]:
    """Return the JSON object that a command has written to a file; empty if there is none."""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
