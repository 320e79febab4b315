#!/usr/bin/env python3
"""The growth of cost with work: CartPole by da3c through the real ports, and push and pull alone.

There are four studies:
connections: 1 to 64 connections of one environment.
environments: two connections of 1 to 32 environments each.
parameters: 10 thousand to 50 million parameters, in push and pull and in training.
shards: 1 to 4 shards, with updates per second, and push and pull of a million parameters.

Each round measures all cases; the result is the median of the rounds. Writes growth-STUDY.csv, a picture of each study,
and the tables of growth.md. A round that is in the CSV is not measured again, so an interrupted study can be resumed.
The machine should be otherwise idle. With the defaults this takes about two hours.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from relaax_runs import ROOT, plan_of, training
from rows import Rows, study_page, write_tables

from support.long_vector import configuration, fingerprint_of
from support.processes import Processes

CARTPOLE = "da3c_gym_cartpole"
BARE = Path(__file__).with_name("bare_grpc.py")
SYNC_SECONDS = 120.0
"""The time allowed for starting and ending the processes of a push and pull, in addition to the measurement."""
MILLION = 1_000_000
Figures = dict[str, float]


@dataclass(frozen=True)
class Options:
    """Options of a measurement. `seconds`: length of a window; `keys`: settings, as for --set."""

    seconds: float
    keys: Sequence[str]


@dataclass(frozen=True)
class GrowthStudy:
    """A study of one dimension. `measure` measures a case; `panels`: labels of the axes and the figures drawn."""

    cases: tuple[int, ...]
    label: str
    measure: Callable[[int, Options], Figures]
    panels: tuple[tuple[str, tuple[str, ...]], ...]


def connections(case: int, options: Options) -> Figures:
    window = training(plan_of(CARTPOLE, case, 1, options.keys), options.seconds)
    return {
        "steps_per_second": window.steps_per_second,
        "slowest_over_mean": min(window.of_connections) / statistics.fmean(window.of_connections),
        "act_p50_ms": statistics.median(window.act_ms),
    }


def environments(case: int, options: Options) -> Figures:
    window = training(plan_of(CARTPOLE, 2, case, options.keys), options.seconds)
    return {"steps_per_second": window.steps_per_second, "act_p50_ms": statistics.median(window.act_ms)}


def parameters(case: int, options: Options) -> Figures:
    """Measure push and pull of `case` parameters, and training with a network of about that size."""
    window = training(plan_of(CARTPOLE, 2, 8, [*options.keys, *hidden(case)]), options.seconds)
    return synchronized(case, 1, options.seconds) | {
        "steps_per_second": window.steps_per_second,
        "updates_per_second": window.pushes / window.seconds,
    }


def shards(case: int, options: Options) -> Figures:
    """Measure a million parameters on `case` shards."""
    spread = f"relaax-parameter-server.shards={case}"
    window = training(plan_of(CARTPOLE, 4, 4, [*options.keys, *hidden(MILLION), spread]), options.seconds)
    return synchronized(MILLION, case, options.seconds) | {"updates_per_second": window.pushes / window.seconds}


def hidden(count: int) -> list[str]:
    """Return keys of the largest network 4 -> w -> w -> 2 + 1, with one trunk, of at most `count` parameters."""
    wide = int(math.sqrt(count + 17.25) - 4.5)  # count = w^2 + 9 w + 3
    return [f"algorithm.network.dense=[{wide}, {wide}]", "algorithm.network.separate=false"]


def synchronized(length: int, count: int, seconds: float) -> Figures:
    """Return the milliseconds of a push and pull by gRPC and by shared memory, with one worker only."""
    with tempfile.TemporaryDirectory() as name, Processes(Path(name)) as processes:
        folder = Path(name)
        path = configuration(folder, length)
        (description := folder / "fingerprint.json").write_text(fingerprint_of(path))
        server = "relaax-parameter-server"
        _, first = processes.start_server(server, "--config", path, "--shard", f"0/{count}")
        others = [
            processes.start_server(server, "--config", path, "--shard", f"{i}/{count}", "--first-shard", first)[1]
            for i in range(1, count)
        ]
        bare = processes.start(sys.executable, BARE, "serve", length)
        arguments = [",".join([first, *others]), bare.wait_for_address(), description, seconds, folder / "sync.json"]
        worker = processes.start(sys.executable, BARE, "compare", *arguments)
        if worker.wait(10 * seconds + SYNC_SECONDS):
            raise RuntimeError(worker.report())
        times = json.loads((folder / "sync.json").read_text("utf-8"))
    kinds = {"grpc_ms": "sync_ms", "shared_memory_ms": "shared_memory_ms", "bare_grpc_ms": "raw_grpc_ms"}
    return {name: statistics.median(times[key]) for name, key in kinds.items() if times[key]}


SPEED = ("environment steps/s", ("steps_per_second",))
LATENCY = ("median of an action, ms", ("act_p50_ms",))
SYNC = ("push and pull, ms", ("grpc_ms", "shared_memory_ms", "bare_grpc_ms"))
UPDATES = ("gradients/s", ("updates_per_second",))
STUDIES = {
    "connections": GrowthStudy(
        (1, 2, 4, 8, 16, 32, 64), "connections of one environment", connections, (SPEED, LATENCY)
    ),
    "environments": GrowthStudy(
        (1, 2, 4, 8, 16, 32), "environments of each of 2 connections", environments, (SPEED, LATENCY)
    ),
    "parameters": GrowthStudy(
        (10_000, 100_000, MILLION, 10 * MILLION, 50 * MILLION), "parameters", parameters, (SYNC, SPEED, UPDATES)
    ),
    "shards": GrowthStudy((1, 2, 3, 4), "shards of a million parameters", shards, (SYNC, UPDATES)),
}


def draw(path: Path, name: str, rows: Rows) -> None:
    """Draw a panel for each kind of figure: a line for the medians of the rounds, a dot for every round."""
    from matplotlib.figure import Figure

    study, cases = STUDIES[name], rows.cases(name)
    picture = Figure(figsize=(4.8 * len(study.panels), 4), layout="constrained")
    for axes, (label, figures) in zip(
        picture.subplots(1, len(study.panels), squeeze=False)[0], study.panels, strict=True
    ):
        for index, figure in enumerate(figures):
            found = {case: [one[figure] for one in rows.rounds(name, case) if figure in one] for case in cases}
            found = {case: values for case, values in found.items() if values}
            axes.plot(
                list(found),
                [statistics.median(values) for values in found.values()],
                "o-",
                color=f"C{index}",
                label=figure,
            )
            for case, values in found.items():
                axes.plot([case] * len(values), values, ".", color=f"C{index}", alpha=0.4)
        axes.set_xscale("log", base=10 if cases[-1] >= MILLION else 2)
        if cases[-1] < MILLION:
            axes.set_xticks(cases, [str(case) for case in cases])
            axes.set_xticks([], minor=True)
        elif len(figures) > 1:
            axes.set_yscale("log")
        if axes.get_yscale() == "linear":
            axes.set_ylim(bottom=0)
        axes.set_xlabel(study.label)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        if len(figures) > 1:
            axes.legend(fontsize=8)
    picture.savefig(path, dpi=120)


def table(name: str, rows: Rows) -> str:
    """Return a table of cases and figures: medians of the rounds."""
    cases = rows.cases(name)
    names = list(dict.fromkeys(figure for case in cases for one in rows.rounds(name, case) for figure in one))
    lines = [f"| {STUDIES[name].label} | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for case in cases:
        rounds = rows.rounds(name, case)
        values = ([one[figure] for one in rounds if figure in one] for figure in names)
        cells = (f"{statistics.median(found):,.4g}" if found else "–" for found in values)
        lines.append(f"| {case:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=tuple(STUDIES), metavar="STUDY", help=f"some of {', '.join(STUDIES)}"
    )
    parser.add_argument(
        "--cases", type=int, nargs="+", metavar="N", help="cases to measure instead of the studies' own"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each case (%(default)s)")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of a window (%(default)s)")
    parser.add_argument(
        "--set", dest="keys", action="append", default=[], metavar="KEY=VALUE", help="a setting; repeatable"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder (docs/results)")
    given = parser.parse_args(arguments)
    if given.rounds < 1 or not given.seconds > 0:
        parser.error("--rounds and --seconds must be above 0")
    given.output.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # KeyboardInterrupt: end the child processes
    options, begun = Options(given.seconds, given.keys), time.monotonic()
    for name in given.only or STUDIES:
        study, rows = STUDIES[name], Rows(given.output / f"growth-{name}.csv")
        for round_ in range(1, given.rounds + 1):
            for case in given.cases or study.cases:
                if rows.has(name, case, round_):
                    continue
                found = study.measure(case, options)
                rows.add(name, case, round_, found)
                shown = ", ".join(f"{key} {value:,.4g}" for key, value in found.items())
                print(f"{time.monotonic() - begun:6.0f} s  {name} {case:,}, round {round_}: {shown}", flush=True)
        draw(given.output / f"growth-{name}.png", name, rows)
        text = table(name, rows)
        write_tables(study_page(given.output, "growth"), name, f"![{study.label}](../growth-{name}.png)\n\n{text}")
        print(text)
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
