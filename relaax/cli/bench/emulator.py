"""The environments alone: random actions, no service, no client (see `relaax.client.program.measuring`)."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from relaax.bundled import bundled_folder
from relaax.cli.bench.programs import Programs
from relaax.cli.run.plan import Plan
from relaax.client.connection.address import RANDOM
from relaax.supervision.process import StartError

WARM_UP_SECONDS = 0.5


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def counted(number: int, one: str, more: str) -> str:
    """Return a number with its unit, singular or plural."""
    return f"{number} {one if number == 1 else more}"


def is_ale(plan: Plan) -> bool:
    """Return whether the environments are the bundled Atari games."""
    return plan.environment_main == (bundled_folder("environments") / "ALE" / "main.py").resolve()


@dataclass(frozen=True, slots=True)
class Form:
    """A way to run the experiment's environments: its name, and the commands that run side by side."""

    name: str
    commands: tuple[tuple[str, ...], ...]

    def window(self, seconds: float, folder: Path) -> float:
        """Return steps per second. Raises StartError."""
        with Programs("emulator", self.commands, folder) as programs:
            speed = programs.window(WARM_UP_SECONDS, seconds)
        if speed <= 0:
            raise StartError(f"the environments alone took no step in {seconds:g} s; give more --seconds")
        return speed


def forms(plan: Plan) -> list[Form]:
    """Return the sensible ways to step as many environments as training has, with the same program and arguments."""
    clients, total = plan.run.clients, plan.environments
    processes = min(cores(), total)
    shares = [(total + i) // processes for i in range(processes)]
    # ale-py starts its own threads, which would compete with those of other processes.
    one_thread = ["--threads", "1"] if is_ale(plan) else []
    each = [
        tuple(plan.environment_command(RANDOM, share, sum(shares[:i])) + one_thread) for i, share in enumerate(shares)
    ]
    found = [
        Form(f"{counted(processes, 'process', 'processes')}, one per core", tuple(each)),
        Form(
            f"{counted(clients, 'process', 'processes')}, as in training",
            tuple(tuple(plan.client_command(RANDOM, i)) for i in range(clients)),
        ),
    ]
    if is_ale(plan):
        whole = [*plan.environment_command(RANDOM, total, 0), "--threads", str(cores())]
        found.append(Form(f"1 process, {counted(cores(), 'thread', 'threads')}", (tuple(whole),)))
    return [form for i, form in enumerate(found) if form.commands not in [other.commands for other in found[:i]]]


def ale_vector_form(plan: Plan) -> Form | None:
    """Return ale-py's bare vector environment with all cores; None if the games are not Atari's."""
    if not is_ale(plan):
        return None
    total = plan.environments
    _, main, *arguments = plan.environment_command(RANDOM, total, 0)
    command = (sys.executable, "-m", "relaax.cli.bench.ale_vector", main, *arguments, "--threads", str(cores()))
    return Form(f"AtariVectorEnv, {counted(cores(), 'thread', 'threads')}", (command,))
