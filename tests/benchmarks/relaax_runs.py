"""RELAAX's side of the studies: the service as in `relaax bench`, the environments alone, and whole runs."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relaax.cli.bench.command import ENDLESS
from relaax.cli.bench.programs import EmulatorForm, emulator_forms, with_network
from relaax.cli.bench.service import MeasuredService, Window
from relaax.cli.run.plan import Plan, make_plan
from relaax.cli.run.run_directory import RunDirectory

ROOT = Path(__file__).resolve().parents[2]
TRIAL_SECONDS = 3.0
MEMORY_SECONDS = 900.0
"""Timeout for the workers' updates, in seconds."""
RUN_SECONDS = 600.0
DONE, MISSED = 0, 3


def plan_of(config: str, clients: int, environments: int, keys: Sequence[str] = ()) -> Plan:
    """Return the plan of an experiment without end. `environments`: per connection."""
    endless = f"algorithm.max_global_step={ENDLESS}"
    return make_plan(config, [endless, f"run.clients={clients}", f"run.envs_per_client={environments}", *keys])


@contextmanager
def service(plan: Plan) -> Iterator[MeasuredService]:
    """Start the servers without clients, and stop them at the end of the block. Raises StartError."""
    with (
        tempfile.TemporaryDirectory(prefix="relaax-study-", ignore_cleanup_errors=True) as folder,
        MeasuredService(plan, Path(folder)) as started,
    ):
        yield started


def training(plan: Plan, seconds: float, updates: int = 0) -> Window:
    """Start servers, warm up and measure a window. Raises StartError."""
    with service(plan) as started:
        return started.window(seconds, updates, MEMORY_SECONDS)


def alone(form: EmulatorForm, seconds: float) -> float:
    """Return the steps per second of the environments alone. Raises StartError."""
    with tempfile.TemporaryDirectory(prefix="relaax-study-") as folder:
        return form.window(seconds, Path(folder))


def networked(plan: Plan, seconds: float) -> float:
    """Return the steps per second of the environments with the training's network. Raises StartError."""
    with tempfile.TemporaryDirectory(prefix="relaax-study-") as folder:
        directory = RunDirectory(Path(folder) / "run")
        directory.open(fresh=False, max_steps=plan.max_steps)
        directory.write_configuration(plan)
        try:
            return with_network(plan, directory.configuration).window(seconds, Path(folder))
        finally:
            directory.close()


def fastest_alone(plan: Plan, report_progress: Callable[[str], None]) -> EmulatorForm:
    """Return the form of the environments that is fastest alone, as `relaax bench` selects it. Raises StartError."""
    found = {form: alone(form, TRIAL_SECONDS) for form in emulator_forms(plan)}
    for form, speed in found.items():
        report_progress(f"the environments alone, {form.name}: {speed:,.0f} steps/s")
    return max(found, key=lambda form: found[form])


def learned(config: str, seed: int, target: float, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Run `relaax run` until the mean return of 100 episodes is `target` or its steps are used up.

    Returns the summary. Raises CalledProcessError if the run fails.
    """
    return _summary(config, seed, ["--target-return", f"{target:g}"], keys)


def evaluated(config: str, seed: int, target: float, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Run `relaax run` until a greedy evaluation is `target`, and return the summary.

    `keys` set the number of steps between evaluations.
    """
    return _summary(config, seed, ["--target-evaluation", f"{target:g}"], keys)


def _summary(config: str, seed: int, target: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="relaax-study-") as folder:
        command = [
            *(sys.executable, "-m", "relaax.cli.main", "run", config, "--no-progress", "--run-dir", f"{folder}/run"),
            *("--seed", str(seed), *target),
            *(part for key in keys for part in ("--set", key)),
        ]
        log = Path(folder) / "log"
        with log.open("w") as output:
            done = subprocess.run(
                command, cwd=ROOT, stdout=output, stderr=output, timeout=RUN_SECONDS, check=False
            ).returncode
        if done not in (DONE, MISSED):
            raise subprocess.CalledProcessError(done, command, log.read_text("utf-8"))
        summary: dict[str, Any] = json.loads((Path(folder) / "run" / "summary.json").read_text("utf-8"))
        return summary
