#!/usr/bin/env python3
"""The cost of the Atari preprocessing: python tests/benchmarks/ale_vector.py [CONFIG [SECONDS]]

Compares the speed of the program environments/ALE with the speed of ale-py's bare AtariVectorEnv. Both run on all cores
with random actions, without a service and without a client. Their windows alternate. The program `main` of
environments/ALE creates the bare environment too. This script runs it in a child process, with the arguments
`step MAIN ARGUMENT ...`.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from relaax.cli.bench.programs import EmulatorForm, emulator_forms
from relaax.cli.options import cores
from relaax.cli.run.plan import Plan, make_plan
from relaax.client import command
from relaax.client.connection.address import RANDOM
from relaax.client.program.measuring import step_alone

ROUNDS = 3


def bare_form(plan: Plan) -> EmulatorForm:
    """Return ale-py's bare vector environment with all cores."""
    _, main, *arguments = plan.environment_command(RANDOM, plan.environments, 0)
    step = (sys.executable, __file__, "step", main, *arguments, "--threads", str(cores()))
    return EmulatorForm(f"AtariVectorEnv, {cores()} threads", (step,))


def step(path: Path, arguments: list[str]) -> None:
    """Step the bare environment until a signal arrives."""
    sys.path.insert(0, str(path.parent))  # the modules in the program's folder
    spec = importlib.util.spec_from_file_location("ale_main", path)
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)

    def run(options: Any) -> Any:
        emulator = program.make(options).emulator
        try:
            step_alone(emulator, options.seed, options.measure)
        finally:
            emulator.close()

    command.execute(program.parser(), run, arguments)


def main(config: str = "da3c_ale_boxing", seconds: str = "10") -> None:
    plan, ratios = make_plan(config, []), []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            ours, bare = (
                form.window(float(seconds), Path(folder)) for form in (emulator_forms(plan)[-1], bare_form(plan))
            )
            ratios.append(ours / bare)
            print(f"environments {ours:,.0f} steps/s, bare {bare:,.0f} steps/s: {ratios[-1]:.3f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["step"]:
        step(Path(sys.argv[2]), sys.argv[3:])
    else:
        main(*sys.argv[1:])
