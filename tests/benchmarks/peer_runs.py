"""The peers' side of the studies: scripts of peers/, run by the Python of their virtual environment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from peers.venvs import python_of

FOLDER = Path(__file__).resolve().parent / "peers"
TRIAL = ("--seconds", "6", "--warm-up", "4")
HANGS_SECONDS = 3600.0
"""Timeout of a script. Its windows take minutes; Ray needs most of a minute to start and to stop."""


def run(peer: str, script: str, arguments: Sequence[str], venvs: Path) -> dict[str, Any]:
    """Run a script and return its result. If it fails, raise RuntimeError with its output."""
    command = [str(python_of(peer, venvs)), str(FOLDER / script), *arguments]
    done = subprocess.run(
        command,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANGS_SECONDS,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"{' '.join(command)} failed with exit code {done.returncode}:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


class Peer:
    """A peer's script. `forms`: alternative arguments; the fastest form in a short window is measured."""

    def __init__(
        self, peer: str, script: str, arguments: Sequence[str], forms: Sequence[Sequence[str]], venvs: Path
    ) -> None:
        self._peer = peer
        self._script = script
        self._arguments = tuple(arguments)
        self._forms = [tuple(form) for form in forms]
        self._venvs = venvs
        self._form: tuple[str, ...] | None = None

    def speed(self, seconds: float, report_progress: Callable[[str], None]) -> float:
        """Return the steps per second of a window after a warm-up."""
        return float(self.result(seconds, report_progress)["steps_per_second"])

    def result(self, seconds: float, report_progress: Callable[[str], None]) -> dict[str, Any]:
        """Return all figures of a window after a warm-up."""
        if self._form is None:
            self._form = self._fastest(report_progress)
        arguments = [*self._arguments, *self._form, "--seconds", f"{seconds:g}"]
        return run(self._peer, self._script, arguments, self._venvs)

    def _fastest(self, report_progress: Callable[[str], None]) -> tuple[str, ...]:
        if len(self._forms) == 1:
            return self._forms[0]
        found = {}
        for form in self._forms:
            result = run(self._peer, self._script, [*self._arguments, *form, *TRIAL], self._venvs)
            found[form] = result["steps_per_second"]
            report_progress(f"{self._script} {' '.join(form)}: {found[form]:,.0f} steps/s")
        return max(found, key=lambda form: found[form])
