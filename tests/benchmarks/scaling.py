#!/usr/bin/env python3
"""A comparison of the model of `relaax plan` with measurements, for environments on 1, 2 and 4 machines.

Trains CartPole by da3c, with throttled environments and with environments at full speed. Machines are network
namespaces. Each has an address, 1 Gbit/s and one environment program, with a connection per environment. The servers
run outside the namespaces. All share the processors of this machine; the model has the same number of cores.

The model's costs come from `--measured FILE`. To write FILE, run this command on this machine:
`relaax bench da3c_gym_cartpole --clients 2 --envs-per-client 8 --json FILE`.
Writes scaling.csv, scaling.json (machine, command, date), scaling.png and the table of the study `scaling`. A case that
is in the CSV is not measured again. Network namespaces need root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
from relaax_runs import ROOT, plan_of
from rows import Rows, study_page, write_tables

from relaax.cli.bench import results
from relaax.cli.bench.programs import Programs, processor_seconds
from relaax.cli.plan.workload import make_workload
from relaax.cli.run.plan import Plan
from relaax.cli.run.progress import Progress, ProgressReader
from relaax.metrics.system import MEGABYTE
from relaax.planning.costs import costs_from_measurement
from relaax.planning.forecast import forecast_on
from relaax.planning.workload import MachineSize
from relaax.rlx import Box, Discrete
from support.namespaces import SERVERS, Namespaces, can_make_namespaces
from support.processes import Processes, Running

CARTPOLE = "da3c_gym_cartpole"
SPACES = Box(-1, 1, [4], "float32"), Discrete(2)
MACHINES = (1, 2, 4)
ENVIRONMENTS = (4, 16, 64, 128)
FIGURES = (
    "steps_per_second",
    "processor_us_per_step",
    "act_p50_ms",
    "act_p99_ms",
    "push_mb_per_second",
    "worker_mb",
    "wire_mb_per_second",
)
SHOWN = FIGURES[:4]
"""The figures in the page's table."""
BAR = 0.30
WARM_UP_SECONDS = 3.0
ADMITTED_SECONDS = 120.0
Figures = dict[str, float]


@dataclass(frozen=True)
class Setting:
    """The settings of all cases. `rate`: steps/s of each environment; None: full speed."""

    seconds: float
    rate: float | None
    gigabits: float
    delay_ms: float


def measure(machines: int, environments: int, setting: Setting) -> Figures:
    """Train with the environments spread evenly over the machines. Raises StartError."""
    plan = plan_of(CARTPOLE, machines, 1)
    with (
        tempfile.TemporaryDirectory(prefix="relaax-scaling-") as name,
        Processes(Path(name)) as processes,
        Namespaces(machines, setting.gigabits, setting.delay_ms) as namespaces,
    ):
        folder = Path(name)
        parameter_server, rlx_server, server = servers(plan, folder, processes)
        commands = []
        for index in range(machines):
            connections = environments // machines
            command = plan.environment_command(rlx_server, 1, index * connections)
            command += ["--connections", str(connections)] if connections > 1 else []
            command += ["--rate", f"{setting.rate:g}"] if setting.rate else []
            commands.append(namespaces.command(index, command))
        reader = ProgressReader()
        with Programs("machine", commands, folder / "clients", None, environments // machines) as programs:
            programs.wait_until_acting()
            programs.wait(WARM_UP_SECONDS)
            seen = [len(one.act_ms) for one in programs.measured]
            spent = processor(programs, processes)
            first, carried, begin = reader.poll(parameter_server), namespaces.bytes_carried(), time.monotonic()
            programs.wait(setting.seconds)
            last, carried, end = reader.poll(parameter_server), namespaces.bytes_carried() - carried, time.monotonic()
            spent = processor(programs, processes) - spent
            megabytes = worker_megabytes(server)
        reader.close()
        act_ms = [ms for count, one in zip(seen, programs.measured, strict=True) for ms in one.act_ms[count:]]
    return figures(first, last, end - begin, act_ms, megabytes, carried, spent)


def servers(plan: Plan, folder: Path, processes: Processes) -> tuple[str, str, Running]:
    """Start both servers. Return the parameter server's address, the RLX server's address, and the RLX server."""
    _, parameter_server = processes.start_server(
        *("relaax-parameter-server", "--config", CARTPOLE, "--bind", "127.0.0.1:0"),
        *("--checkpoint-dir", str(folder / "checkpoints"), "--metrics-dir", str(folder / "metrics")),
        *("--set", f"algorithm.max_global_step={10**15}"),
    )
    server, address = processes.start_server(
        *("relaax-rlx-server", "--config", CARTPOLE, "--bind", f"{SERVERS}:0", "--allow-anonymous"),
        *("--parameter-server", parameter_server, "--set", f"algorithm.max_global_step={10**15}"),
    )
    return parameter_server, address, server


def processor(programs: Programs, processes: Processes) -> float:
    """Return the processor seconds that environments and servers have used."""
    return processor_seconds([*programs.pids, *(one.pid for one in processes.running)], descendants=True)


def worker_megabytes(server: Running) -> list[float]:
    found = []
    for process in server.children():
        with contextlib.suppress(psutil.Error):
            found.append(process.memory_full_info().uss / MEGABYTE)
    return found


def figures(
    first: Progress,
    last: Progress,
    seconds: float,
    act_ms: Sequence[float],
    megabytes: Sequence[float],
    carried: int,
    spent: float,
) -> Figures:
    pushes = last.updates + last.discarded - first.updates - first.discarded
    return {
        "steps_per_second": (last.global_step - first.global_step) / seconds,
        "processor_us_per_step": 1e6 * spent / max(1, last.global_step - first.global_step),
        "act_p50_ms": results.percentile(act_ms, 0.5),
        "act_p99_ms": results.percentile(act_ms, 0.99),
        "push_mb_per_second": pushes / seconds,  # pushes; `measured_of` multiplies by the bytes of a push
        "worker_mb": statistics.fmean(megabytes),
        "wire_mb_per_second": carried / seconds / 1e6,
    }


def modelled(result: dict[str, Any], environments: int, setting: Setting, has_delay: bool) -> Figures:
    """Return the model's figures for one machine with the cores of this one."""
    plan = plan_of(CARTPOLE, 1, 1)
    workload = make_workload(plan, SPACES, environments, setting.rate)
    costs = costs_from_measurement(result, workload, "bench")
    size = MachineSize(
        cores=result["machine"]["cores"],
        gigabytes=result["machine"]["memory_mb"] / 1e3,
        gigabits=setting.gigabits,
        round_trip_ms=setting.delay_ms if has_delay else 0.0,
    )
    found = forecast_on(workload, costs, size, 1)
    workers = next(part for part in found.parts if part.name == "workers")
    environments_part = next(part for part in found.parts if part.name == "environments")
    return {
        "steps_per_second": found.steps_per_second,
        "processor_us_per_step": 1e6 * sum(part.cores for part in found.parts) / found.steps_per_second,
        "act_p50_ms": found.act_p50_ms,
        "act_p99_ms": found.act_p99_ms,
        "push_mb_per_second": found.pushes_per_second * workload.push_bytes / 1e6,
        "worker_mb": workers.process_mb,
        "wire_mb_per_second": (environments_part.in_gigabits + environments_part.out_gigabits) * 1e3 / 8,
    }


def measured_of(figures_: Figures, push_bytes: float) -> Figures:
    return figures_ | {"push_mb_per_second": figures_["push_mb_per_second"] * push_bytes / 1e6}


def part_of(machines: int, rate: float | None) -> str:
    return f"{machines} machine{'s' * (machines > 1)}, " + ("free" if rate is None else f"{rate:g}/s")


def table(
    rows: Rows, parts: Sequence[tuple[str, float | None]], models: dict[tuple[float | None, int], Figures]
) -> str:
    """Return the table of measured and modelled figures, with the number of figures within the bar."""
    lines = [f"| machines, rate | environments | {' | '.join(SHOWN)} |", f"|---|---|{'---|' * len(SHOWN)}"]
    within, count = 0, 0
    for part, rate in parts:
        for case in rows.cases(part):
            found, model = median_of(rows, part, case), models[rate, case]
            cells = []
            for name in FIGURES:
                good = abs(model[name] / found[name] - 1) <= BAR if found[name] else model[name] == 0
                within, count = within + good, count + 1
                if name in SHOWN:
                    cells.append(f"{found[name]:,.4g}/{model[name]:,.4g}" + ("" if good else " **x**"))
            lines.append(f"| {part} | {case} | {' | '.join(cells)} |")
    lines.append(
        f"\nMeasured/modelled. {within} of {count} figures ({len(FIGURES)} for each row) are within {BAR:.0%}; **x** "
        "marks those that are not."
    )
    return "\n".join(lines) + "\n"


def median_of(rows: Rows, part: str, case: int) -> Figures:
    rounds = rows.rounds(part, case)
    return {name: statistics.median(one[name] for one in rounds) for name in FIGURES}


def draw(path: Path, rows: Rows, parts: Sequence[tuple[str, float | None]], models: dict[Any, Figures]) -> None:
    """Draw a panel for each kind of figure: measurements as dots, the model as lines."""
    from matplotlib.figure import Figure

    drawn = ("steps_per_second", "act_p50_ms", "act_p99_ms")
    picture = Figure(figsize=(4.8 * len(drawn), 8), layout="constrained")
    grid = picture.subplots(2, len(drawn), squeeze=False)
    for row, rate in enumerate(dict.fromkeys(rate for _, rate in parts)):
        for axes, name in zip(grid[row], drawn, strict=True):
            for index, (part, _) in enumerate(pair for pair in parts if pair[1] == rate):
                cases = rows.cases(part)
                values = [median_of(rows, part, case)[name] for case in cases]
                axes.plot(cases, values, "o", color=f"C{index}", label=f"measured, {part}")
            cases = sorted(case for other, case in models if other == rate)
            axes.plot(cases, [models[rate, case][name] for case in cases], "k--", label="model")
            axes.set_xscale("log", base=2)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("environments")
            axes.set_ylabel(name)
            axes.grid(alpha=0.3)
            axes.legend(fontsize=7)
    picture.savefig(path, dpi=120)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    results_folder = ROOT / "docs" / "results"
    parser.add_argument("--measured", type=Path, default=results_folder / "scaling-bench.json", help="(%(default)s)")
    parser.add_argument("--machines", type=int, nargs="+", default=list(MACHINES), metavar="N")
    parser.add_argument("--environments", type=int, nargs="+", default=list(ENVIRONMENTS), metavar="N")
    parser.add_argument("--rate", type=float, default=30.0, help="steps/s of each throttled environment (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each case (%(default)s)")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of a window (%(default)s)")
    parser.add_argument("--gigabits", type=float, default=1.0, help="network bandwidth of each machine (%(default)s)")
    parser.add_argument("--delay", type=float, default=1.0, help="round trip in milliseconds, by netem (%(default)s)")
    parser.add_argument("--output", type=Path, default=results_folder, help="folder (docs/results)")
    given = parser.parse_args(arguments)
    if not can_make_namespaces():
        parser.error("network namespaces need root and the command ip (iproute2)")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # KeyboardInterrupt: end the child processes
    result = json.loads(given.measured.read_text("utf-8"))
    given.output.mkdir(parents=True, exist_ok=True)
    rows, begun = Rows(given.output / "scaling.csv"), time.monotonic()
    facts = {"date": time.strftime("%Y-%m-%d"), "command": " ".join(arguments), "machine": results.describe_machine()}
    with Namespaces(1, given.gigabits, given.delay) as namespaces:
        has_delay = namespaces.has_delay
    facts["delay_ms"] = given.delay if has_delay else 0.0
    parts = [(part_of(count, rate), rate) for rate in (given.rate, None) for count in given.machines]
    push_bytes = make_workload(plan_of(CARTPOLE, 1, 1), SPACES, 1, None).push_bytes
    models: dict[tuple[float | None, int], Figures] = {}
    for round_ in range(1, given.rounds + 1):
        for rate in (given.rate, None):
            setting = Setting(given.seconds, rate, given.gigabits, given.delay)
            for count in given.machines:
                for case in given.environments:
                    models[rate, case] = modelled(result, case, setting, has_delay)
                    part = part_of(count, rate)
                    if case % count or rows.has(part, case, round_):
                        continue
                    found = measured_of(measure(count, case, setting), push_bytes)
                    rows.add(part, case, round_, found)
                    shown = ", ".join(
                        f"{name} {found[name]:,.4g} / {models[rate, case][name]:,.4g}" for name in FIGURES
                    )
                    print(f"{time.monotonic() - begun:6.0f} s  {part}, {case}, round {round_}: {shown}", flush=True)
    (given.output / "scaling.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
    draw(given.output / "scaling.png", rows, parts, models)
    text = table(rows, parts, models)
    write_tables(
        study_page(given.output, "scaling"), "measured", f"![environments on machines](../scaling.png)\n\n{text}"
    )
    print(text)
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
