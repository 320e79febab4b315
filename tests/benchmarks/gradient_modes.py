#!/usr/bin/env python3
"""The effect of the gradient mode with more workers: CartPole by da3c, through the real ports.

Each mode is trained for the same number of environment steps, with 1, 2, 4 and 8 workers of one environment each, and
with several seeds. With one worker no gradient is stale and all modes are equal, so only one of them is run. Writes
gradient-modes.csv, gradient-modes.png and the tables of the study's page. A run that is in the CSV is not repeated, so
an interrupted study can be resumed.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from rows import study_page, write_tables
from training_runs import ROOT, Training, trained

CONFIG = ROOT / "config" / "da3c_gym_cartpole.yaml"
NAME = "gradient-modes"
ALONE = "fifo"


@dataclass(frozen=True)
class Result:
    """The result of a run. `score`: mean return of its last 100 episodes. Staleness is in versions, over the run."""

    mode: str
    workers: int
    seed: int
    score: float
    staleness: float
    staleness_p95: float
    updates: int
    discarded: int
    steps: int
    seconds: float


def modes(options: argparse.Namespace, workers: int) -> dict[str, dict[str, Any]]:
    """Return the modes: names, and the keys that select them."""
    bound = options.max_staleness
    return {
        "fifo": {},
        f"fifo, at most {bound} versions old": {"algorithm.max_staleness": bound},
        "delay-compensated": {"algorithm.combine": "delay_compensated"},
    }


def plan(options: argparse.Namespace) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """Yield mode, workers, seed and keys of every run."""
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for workers in options.workers:
            for mode, keys in modes(options, workers).items():
                if workers > 1 or mode == ALONE:
                    yield mode, workers, seed, keys


def result_of(mode: str, workers: int, seed: int, keys: dict[str, Any], steps: int) -> Result:
    """Train from scratch. Raises RuntimeError if the training fails."""
    settings = {"run.target_return": None, "algorithm.max_global_step": steps, **keys}
    options = ["--clients", workers, "--envs-per-client", 1, "--seed", seed]
    scalars = ("staleness/mean", "staleness/p95", "discarded/stale")
    outcome = trained(Training(CONFIG, options, settings, scalars=scalars))
    summary, curves = outcome.summary, dict(outcome.curves)
    discarded = curves.pop("discarded/stale")[-1][2]
    means = {tag: statistics.fmean(value for _, _, value in curve) for tag, curve in curves.items()}
    return Result(
        mode=mode,
        workers=workers,
        seed=seed,
        score=round(summary["mean_return_100"], 1),
        staleness=round(means["staleness/mean"], 2),
        staleness_p95=round(means["staleness/p95"], 2),
        updates=summary["updates"],
        discarded=int(discarded),
        steps=summary["env_steps"],
        seconds=round(summary["seconds"], 1),
    )


def read_results(path: Path) -> list[Result]:
    """Return the results of earlier runs; an empty list if there is no file."""
    if not path.is_file():
        return []
    kinds: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float}
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Result(**{field.name: kinds[str(field.type)](row[field.name]) for field in fields(Result)})
            for row in csv.DictReader(file)
        ]


def write_results(path: Path, results: list[Result]) -> None:
    """Write all results in the order of the runs."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Result)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(result) for result in results)


def cells(results: list[Result], value: Callable[[Result], float]) -> dict[str, dict[int, list[float]]]:
    """Return the values of all seeds by mode and number of workers. Each mode includes the runs with one worker."""
    table: dict[str, dict[int, list[float]]] = {mode: {} for mode in dict.fromkeys(r.mode for r in results)}
    for result in results:
        for mode in table if result.workers == 1 else [result.mode]:
            table[mode].setdefault(result.workers, []).append(value(result))
    return table


def markdown_table(results: list[Result], value: Callable[[Result], float], form: str, spread: bool) -> str:
    """Return a table of modes by workers: the median of the seeds and, with `spread`, minimum and maximum."""
    workers = sorted({result.workers for result in results})
    lines = [f"| | {' | '.join(map(str, workers))} |", f"|---|{'---|' * len(workers)}"]
    for mode, row in cells(results, value).items():
        shown = []
        for n in workers:
            values = row.get(n, [])
            text = format(statistics.median(values), form) if values else "–"
            if spread and len(values) > 1:
                text += f" ({min(values):{form}} to {max(values):{form}})"
            shown.append(text)
        lines.append(f"| {mode} | {' | '.join(shown)} |")
    return "\n".join(lines)


def tables(results: list[Result]) -> str:
    """Return the tables of the study's page."""
    shown = {
        "Mean return of the last 100 training episodes, at the end: the median of the seeds (least to most).": (
            markdown_table(results, lambda r: r.score, ".0f", True)
        ),
        "Staleness in versions: the mean over a run, median of the seeds.": (
            markdown_table(results, lambda r: r.staleness, ".1f", False)
        ),
    }
    return "\n\n".join(f"{about}\n\n{table}" for about, table in shown.items()) + "\n"


def draw(path: Path, results: list[Result]) -> None:
    """Draw score and staleness: a line for the medians of the seeds, a dot for every run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    values = (lambda r: r.score, "mean return of the last 100 episodes"), (lambda r: r.staleness, "staleness, versions")
    for axes, (value, label) in zip(panels, values, strict=True):
        for index, (mode, row) in enumerate(cells(results, value).items()):
            workers = sorted(row)
            medians = [statistics.median(row[n]) for n in workers]
            axes.plot(workers, medians, color=f"C{index}", marker="o", markersize=4, label=mode)
            for n in workers:
                axes.plot([n] * len(row[n]), row[n], ".", color=f"C{index}", alpha=0.4)
        axes.set_xscale("log", base=2)
        ticks = sorted({result.workers for result in results})
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.set_xlabel("workers")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40_000, help="environment steps of a run (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (%(default)s)")
    parser.add_argument("--first-seed", type=int, default=200, help="the first seed (%(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of workers (1 2 4 8)")
    parser.add_argument(
        "--max-staleness", type=int, default=4, help="bound of the second mode, in versions (%(default)s)"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder (docs/results)")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    table = options.output / f"{NAME}.csv"
    results = read_results(table)
    done = {(result.mode, result.workers, result.seed) for result in results}
    runs = [run for run in plan(options) if run[:3] not in done]
    began = time.monotonic()
    for number, (mode, workers, seed, keys) in enumerate(runs, start=1):
        result = result_of(mode, workers, seed, keys, options.steps)
        results.append(result)
        write_results(table, results)
        left = (time.monotonic() - began) / number * (len(runs) - number)
        print(
            f"{number}/{len(runs)}  {workers} x {mode}, seed {seed}: score {result.score:.0f}, staleness "
            f"{result.staleness:.1f}, {result.discarded} discarded, {result.seconds:.0f} s; "
            f"about {left / 60:.0f} min left",
            flush=True,
        )
    write_tables(study_page(options.output, NAME), NAME, tables(results))
    draw(options.output / f"{NAME}.png", results)
    print(f"written into {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
