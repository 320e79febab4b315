#!/usr/bin/env python3
"""The effect of the learning rate: a small version of Figure 2 of Mnih et al. 2016, four methods on CartPole.

Each method is trained from scratch with rates drawn log-uniformly, one seed per rate. The score is that of a greedy
evaluation at the end. Writes value-learning-rates.csv, value-learning-rates.png and a table of value.md. A training
that is in the CSV is not repeated.

    python tests/benchmarks/learning_rates.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from rows import Rows, study_page, write_tables
from training_runs import NO_TARGETS, ROOT, Trained, Training, train_all
from workers import METHODS

NAME = "value-learning-rates"
BETTER = 400.0
"""The lowest score at which a rate counts as learning."""


def rates(options: argparse.Namespace) -> list[float]:
    """Return the rates: one at random in each of `options.rates` equal parts of the logarithmic range."""
    low, high = np.log10([options.least, options.most])
    places = np.arange(options.rates) + np.random.default_rng(options.seed).random(options.rates)
    return [float(f"{10 ** (low + (high - low) * place / options.rates):.3g}") for place in places]


def table(rows: Rows) -> str:
    """Return a table: the number of rates that learned, the lowest, the highest, and the best."""
    lines = ["| method | rates | that learned | from | to | best | its score |", "|---|---:|---:|---:|---:|---:|---:|"]
    for method, title in METHODS.items():
        found = [r for case in rows.cases(method) for r in rows.rounds(method, case)]
        if not found:
            continue
        good = sorted(r["rate"] for r in found if r["score"] >= BETTER)
        best = max(found, key=lambda r: r["score"])
        span = f"{good[0]:.2g} | {good[-1]:.2g}" if good else "– | –"
        lines.append(f"| {title} | {len(found)} | {len(good)} | {span} | {best['rate']:.2g} | {best['score']:.0f} |")
    return "\n".join(
        [f"Learned: a score of {BETTER:g} or more.", "", *lines, "", f"![Score against rate](../{NAME}.png)"]
    )


def draw(path: Path, rows: Rows) -> None:
    """Draw score against rate, with a panel for each method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.4), layout="constrained")
    for axes, (method, title) in zip(figure.subplots(1, len(METHODS), sharey=True), METHODS.items(), strict=True):
        found = [r for case in rows.cases(method) for r in rows.rounds(method, case)]
        axes.plot([r["rate"] for r in found], [r["score"] for r in found], "ko", markersize=5)
        axes.set_xscale("log")
        axes.set_title(title)
        axes.set_xlabel("learning rate")
        axes.grid(alpha=0.3)
        axes.set_ylim(0, 510)
    figure.axes[0].set_ylabel("greedy evaluation")
    figure.savefig(path, dpi=120)


def parser_of(description: str | None, steps: int, seed: int) -> argparse.ArgumentParser:
    """Return the parser of a study of rates, with its default steps and seed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="methods to train (all)")
    parser.add_argument("--rates", type=int, default=10, help="number of rates (%(default)s)")
    parser.add_argument("--least", type=float, default=1e-4, help="the lowest rate (%(default)g)")
    parser.add_argument("--most", type=float, default=1e-2, help="the highest rate (%(default)g)")
    parser.add_argument("--steps", type=int, default=steps, help="environment steps of a training (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=seed, help="seed of the first training and of the rates (%(default)s)"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder (docs/results)")
    return parser


def train_at_rates(rows: Rows, runs: Sequence[tuple[str, int, float, Training]], log: Path) -> None:
    """Run trainings, given as part, case, rate and training, and add rate, score and steps of each to the rows."""

    def done(index: int, outcome: Trained) -> None:
        part, case, rate, _ = runs[index]
        assert outcome.score is not None
        rows.add(part, case, 1, {"rate": rate, "score": outcome.score, "steps": outcome.summary["env_steps"]})

    train_all([(f"{part} at {rate:g}", training) for part, _, rate, training in runs], 1.0, done, log)


def main(arguments: list[str]) -> int:
    options = parser_of(__doc__, steps=150_000, seed=400).parse_args(arguments)
    rows = Rows(options.output / f"{NAME}.csv")
    runs: list[tuple[str, int, float, Training]] = []
    for index, rate in enumerate(rates(options)):
        for method in options.methods:
            if rows.has(method, index, 1):
                continue
            settings: dict[str, Any] = {
                **NO_TARGETS,
                "algorithm.initial_learning_rate": rate,
                "algorithm.max_global_step": options.steps,
            }
            config = ROOT / "config" / f"{method}_gym_cartpole.yaml"
            training = Training(config, ["--seed", options.seed + index], settings, load=0.5, episodes=30)
            runs.append((method, index, rate, training))

    train_at_rates(rows, runs, options.output / f"{NAME}.log")
    write_tables(study_page(options.output, "value"), NAME, table(rows))
    draw(options.output / f"{NAME}.png", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
