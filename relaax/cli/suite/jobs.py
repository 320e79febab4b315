"""Train and evaluate the jobs of a suite, some at a time."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from relaax.cli.suite.record import SuiteRecord
from relaax.configuration import ConfigurationError
from relaax.supervision.process import EXIT_REFUSED, ending_with_parent

_LINES = 10
_POLL_SECONDS = 0.2
_KILL_SECONDS = 120.0
"""From the first signal on: a last checkpoint may be large."""


class JobFailed(Exception):
    """A job's process failed. The message has its last words."""


class JobRunner:
    """Runs each job as `relaax run`, then `relaax eval`, in processes of their own.

    `say` is told what begins and ends. `share`: cores for the evaluation of one job. Once `stopping` is set nothing
    more begins, and what runs is told to end.
    """

    def __init__(self, record: SuiteRecord, folder: Path, share: int, say: Callable[[str], None]) -> None:
        self._record, self._folder, self._share, self._say = record, folder, share, say
        self._plan = record.plan
        self._lock = threading.Lock()
        self.stopping = threading.Event()

    def run(self, names: Sequence[str], at_once: int) -> list[str]:
        """Run the jobs; return a sentence for each that failed. Raises ConfigurationError if one is refused."""
        failures: list[str] = []
        refused: list[ConfigurationError] = []

        def one(name: str) -> None:
            try:
                self._job(name)
            except JobFailed as failure:
                failures.append(f"{name}: {failure}")
                self._say(f"{name} failed")
            except ConfigurationError as error:
                refused.append(error)
                self.stopping.set()

        with ThreadPoolExecutor(at_once) as pool:
            for done in [pool.submit(one, name) for name in names]:
                done.result()
        if refused:
            raise refused[0]
        return failures

    def _job(self, name: str) -> None:
        job = self._record.jobs[name]
        environment, seed = self._plan.names()[name]
        run = self._folder / name
        self._count(name, run)
        if not job.trained and not self.stopping.is_set():
            self._say(f"{name}: training{f', {job.seconds:.0f} s so far' if job.seconds else ''}")
            code, words = self._process(name, "run", *self._training(environment, seed, run, job.seconds))
            self._count(name, run)
            if not job.trained:
                self._fail(code, words)
        if job.trained and job.result is None and not self.stopping.is_set():
            self._say(f"{name}: evaluating")
            file = self._folder / f"{name}.json"
            options = ("--episodes", str(self._plan.episodes), "--jobs", str(self._share), "--json", str(file))
            code, words = self._process(name, "eval", str(run), *options, *self._plan.evaluation)
            if code != 0:
                self._fail(code, words)
                return
            with self._lock:
                job.result = _read(file)
                self._record.save()
            self._say(f"{name}: mean return {job.result['mean']:g} of {job.result['episodes']} episodes")

    def _training(self, environment: str, seed: int, run: Path, seconds: float) -> list[str]:
        plan = self._plan
        options = [plan.config, "--run-dir", str(run), "--seed", str(seed)]
        for text in (
            "run.target_return=null",
            "run.target_evaluation=null",
            *plan.overrides,
            f"run.name={environment}",
        ):
            options += ["--set", text]
        if plan.max_steps is not None:
            options += ["--max-steps", str(plan.max_steps)]
        if plan.max_seconds is not None:
            options += ["--max-time", str(max(1.0, plan.max_seconds - seconds))]
        return options

    def _process(self, name: str, *arguments: str) -> tuple[int, str]:
        """Return exit code and last words. What it says goes to NAME.log."""
        log = self._folder / f"{name}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                ending_with_parent([sys.executable, "-m", "relaax.cli.main", *arguments]),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code = self._waited(process)
        return code, "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES:])

    def _waited(self, process: subprocess.Popen[bytes]) -> int:
        """Return the exit code. What is to stop is told so: a training then writes its last checkpoint."""
        told: float | None = None
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_SECONDS)
            if self.stopping.is_set() and told is None:
                told = time.monotonic()
                process.terminate()  # SIGINT would be ignored by what was started in the background
            elif told is not None and time.monotonic() - told > _KILL_SECONDS:
                process.kill()

    def _fail(self, code: int, words: str) -> None:
        """Raise for a process that ended with this code, unless it was told to."""
        if self.stopping.is_set():
            return
        if code == EXIT_REFUSED:
            raise ConfigurationError(words)
        raise JobFailed(f"ended with code {code}:\n{words}")

    def _count(self, name: str, run: Path) -> None:
        with self._lock:
            self._record.count(name, _read(run / "summary.json"))


def _read(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
