#!/usr/bin/env python3
"""The effect of 16-bit numbers on the wire: cost in learning, savings in bytes and time.

First, da3c solves CartPole through the real ports and gRPC, with several seeds for each precision. Then pushes, whose
answers carry the parameters, are timed at one real parameter server. The precisions alternate, with a client for each.
Writes wire-precision.csv, wire-precision.png and the tables of the study's page. A run that is in the folder of runs is
not repeated, so an interrupted study can be resumed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from rows import study_page, write_tables

from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import Registration
from relaax.parameters.precision import PRECISIONS
from support.long_vector import configuration, fingerprint_of
from support.processes import Processes

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config" / "da3c_gym_cartpole.yaml"
NAME = "wire-precision"
TARGET = 475
TOGETHER = 25
"""Consecutive pushes of one precision."""


@dataclass(frozen=True)
class Exchange:
    """Pushes in one precision. `quartiles`, `processor` (both ends): ms of a push; `sent`: bytes both ways."""

    parameters: int
    precision: str
    quartiles: list[float]
    processor: float
    sent: int


def folder_of(runs: Path, precision: str, seed: int) -> Path:
    """Return the run directory."""
    return runs / f"{precision}-{seed}"


def trained(runs: Path, precision: str, seed: int, steps: int) -> dict[str, Any]:
    """Return the summary of a run. If it does not exist, train first. Raises CalledProcessError if training fails."""
    folder = folder_of(runs, precision, seed)
    summary = folder / "summary.json"
    if not summary.is_file():
        settings = ["rlx-server.bridge=grpc", f"rlx-server.wire_precision={precision}"]
        command = [
            *(sys.executable, "-m", "relaax.cli.main", "run", str(CONFIG), "--no-progress", "--fresh"),
            *("--run-dir", str(folder), "--seed", str(seed), "--max-steps", str(steps)),
            *("--target-return", str(TARGET)),
            *(part for setting in settings for part in ("--set", setting)),
        ]
        code = subprocess.run(command, cwd=ROOT).returncode
        if code not in (0, 3):  # 3: ended before the target, which is a result
            raise subprocess.CalledProcessError(code, command)
    found: dict[str, Any] = json.loads(summary.read_text("utf-8"))
    return found


def exchanged(parameters: int, seconds: float) -> list[Exchange]:
    """Alternate pushes of all precisions for `seconds` in total."""
    with tempfile.TemporaryDirectory() as name, Processes(Path(name)) as processes, ExitStack() as stack:
        path = configuration(Path(name), parameters)
        running, address = processes.start_server("relaax-parameter-server", "--config", path)
        server, worker = psutil.Process(running.process.pid), psutil.Process()
        clients = {
            precision: stack.enter_context(closing(ParameterClient(address, wire_precision=precision, timeout=60.0)))
            for precision in PRECISIONS
        }
        for client in clients.values():
            client.register(Registration(fingerprint_of(path)))
            client.pull()
        gradient = np.random.default_rng(0).normal(scale=1e-3, size=parameters).astype(np.float32)
        times: dict[str, list[float]] = {precision: [] for precision in clients}
        processor = dict.fromkeys(clients, 0.0)
        for _ in range(TOGETHER):  # warm-up
            for client in clients.values():
                client.push(gradient, 1)
        ends = time.monotonic() + seconds
        while not times["float32"] or time.monotonic() < ends:
            for precision, client in clients.items():
                before = processor_seconds(server, worker)
                for _ in range(TOGETHER):
                    begun = time.perf_counter()
                    client.push(gradient, 1)
                    times[precision].append((time.perf_counter() - begun) * 1e3)
                processor[precision] += processor_seconds(server, worker) - before
    return [
        Exchange(
            parameters,
            precision,
            statistics.quantiles(found, n=4),
            processor[precision] / len(found) * 1e3,
            2 * parameters * (4 if precision == "float32" else 2),
        )
        for precision, found in times.items()
    ]


def processor_seconds(*processes: psutil.Process) -> float:
    """Return the total processor seconds of the processes."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def table_of_runs(precisions: Sequence[str], found: dict[tuple[str, int], dict[str, Any]]) -> str:
    """Return a table with a row per precision: steps to the target by seed, and the median."""
    seeds = sorted({seed for _, seed in found})
    lines = [
        f"| | {' | '.join(f'seed {seed}' for seed in seeds)} | median | solved |",
        "|---|" + "---|" * (len(seeds) + 2),
    ]
    for precision in precisions:
        runs = [found[precision, seed] for seed in seeds]
        steps = [run["env_steps"] for run in runs]
        solved = sum(run["status"] == "target_reached" for run in runs)
        row = [*(f"{n:,}" for n in steps), f"**{statistics.median(steps):,.0f}**", f"{solved} of {len(runs)}"]
        lines.append(f"| {precision} | {' | '.join(row)} |")
    return "\n".join(lines)


def table_of_exchanges(found: list[Exchange]) -> str:
    """Return a table with a row per length and precision."""
    lines = [
        "| parameters | | quartiles, ms | ratio of medians | processor, both ends, ms | megabytes | at 1 Gbit/s, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    medians = {exchange.parameters: exchange.quartiles[1] for exchange in found if exchange.precision == "float32"}
    for exchange in found:
        wire = exchange.sent * 8 / 1e9 * 1e3
        row = [
            f"{exchange.parameters:,}",
            exchange.precision,
            "  ".join(f"{value:.2f}" for value in exchange.quartiles),
            f"{exchange.quartiles[1] / medians[exchange.parameters]:.2f}",
            f"{exchange.processor:.2f}",
            f"{exchange.sent / 1e6:.2f}",
            f"{wire:.1f}",
        ]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--precisions",
        nargs="+",
        choices=list(PRECISIONS),
        default=list(PRECISIONS),
        help="precisions to compare (all)",
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (%(default)s)")
    parser.add_argument("--first-seed", type=int, default=300, help="the first seed (%(default)s)")
    parser.add_argument("--steps", type=int, default=200_000, help="maximum steps of a run (%(default)s)")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[677_747, 5_000_000], help="numbers of parameters (677747 5000000)"
    )
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="duration of the pushes of each length (%(default)s)"
    )
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / NAME, help="folder of the runs (runs/...)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder (docs/results)")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for seed in seeds:
        for precision in options.precisions:
            found[precision, seed] = run = trained(options.runs, precision, seed, options.steps)
            print(f"{precision}, seed {seed}: {run['status']} after {run['env_steps']:,} steps, {run['seconds']:.0f} s")
    exchanges = [exchange for length in options.lengths for exchange in exchanged(length, options.seconds)]
    page = study_page(options.output, NAME)
    write_tables(page, "runs", table_of_runs(options.precisions, found) + "\n")
    write_tables(page, "exchanges", table_of_exchanges(exchanges) + "\n")
    drawing = [
        *(sys.executable, "-m", "relaax.cli.main", "plot", "--target", str(TARGET)),
        *("--output", str(options.output / f"{NAME}.png"), "--csv", str(options.output / f"{NAME}.csv")),
    ]
    for precision in options.precisions:
        drawing += ["--group", f"{precision}={folder_of(options.runs, precision, 0).with_name(f'{precision}-*')}"]
    subprocess.run(drawing, check=True)
    print(f"written into {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
