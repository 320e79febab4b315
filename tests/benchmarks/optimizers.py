#!/usr/bin/env python3
"""Three optimizers of Mnih et al. 2016, a small version of Figure 8: four methods on MinAtar Breakout, ten rates each.

Momentum SGD and RMSProp have separate statistics in each worker; Shared RMSProp has one for all. Each method is trained
from scratch with each optimizer and with rates drawn log-uniformly, the same for all. The score is that of a
greedy evaluation at the end. Writes optimizers.csv, optimizers.png and a table of the study `papers`. A training that
is in the CSV is not repeated.

    python tests/benchmarks/optimizers.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from learning_rates import parser_of, rates, train_at_rates
from rows import Rows, study_page, write_tables
from training_runs import NO_TARGETS, ROOT, Training
from workers import METHODS

NAME = "optimizers"
OPTIMIZERS = {"worker_momentum": "Momentum SGD", "worker_rms_prop": "RMSProp", "rms_prop": "Shared RMSProp"}
CUT = ("--max-episode-steps", 5_000)
"""Options of the evaluation: a policy that never misses the ball would not end."""
BASE = ROOT / "config" / "n_step_q_minatar_breakout.yaml"


def training(method: str, optimizer: str, rate: float, seed: int, steps: int) -> Training:
    """Return a training of `steps` steps with a rate, evaluated at the end."""
    settings: dict[str, Any] = {
        **NO_TARGETS,
        "algorithm.optimizer": optimizer,
        "algorithm.initial_learning_rate": rate,
        "algorithm.max_global_step": steps,
    }
    config = ROOT / "config" / f"{method}_minatar_breakout.yaml"
    if not config.is_file():
        config = BASE
        settings["algorithm.path"] = str(ROOT / "algorithms" / method)
    if method != "da3c":
        settings["algorithm.exploration_frames"] = steps // 2
    return Training(config, ["--seed", seed], settings, load=0.5, episodes=30, evaluation_options=CUT)


def scores(rows: Rows, method: str, optimizer: str) -> list[tuple[float, float]]:
    """Return rate and score of each training, by rate."""
    part = f"{method} {optimizer}"
    found = [one for case in rows.cases(part) for one in rows.rounds(part, case)]
    return sorted((one["rate"], one["score"]) for one in found)


def table(rows: Rows) -> str:
    """Return a table of the mean of all scores and the best score, for each method and optimizer."""
    lines = [f"| method | {' | '.join(OPTIMIZERS.values())} |", "|---|" + "---:|" * len(OPTIMIZERS)]
    for method, title in METHODS.items():
        cells = []
        for optimizer in OPTIMIZERS:
            found = [score for _, score in scores(rows, method, optimizer)]
            cells.append(f"{np.mean(found):.1f}, {max(found):.1f}" if found else "–")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(
        ["Mean over the rates, and best:", "", *lines, "", f"![Scores of all rates, sorted](../{NAME}.png)"]
    )


def draw(path: Path, rows: Rows) -> None:
    """Draw the scores in descending order, as in Figure 8 of the paper, with a panel for each method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.4), layout="constrained")
    styles: Sequence[str] = (":", "--", "-")
    for axes, (method, title) in zip(figure.subplots(1, len(METHODS), sharey=True), METHODS.items(), strict=True):
        for (optimizer, label), style in zip(OPTIMIZERS.items(), styles, strict=True):
            found = sorted((score for _, score in scores(rows, method, optimizer)), reverse=True)
            axes.plot(range(1, 1 + len(found)), found, marker="o", markersize=4, linestyle=style, label=label)
        axes.set_title(title)
        axes.set_xlabel("rate, by rank")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("greedy evaluation")
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main(arguments: list[str]) -> int:
    options = parser_of(__doc__, steps=200_000, seed=800).parse_args(arguments)
    rows = Rows(options.output / f"{NAME}.csv")
    runs: list[tuple[str, int, float, Training]] = []
    for index, rate in enumerate(rates(options)):
        for method in options.methods:
            for optimizer in OPTIMIZERS:
                part = f"{method} {optimizer}"
                if not rows.has(part, index, 1):
                    made = training(method, optimizer, rate, options.seed + index, options.steps)
                    runs.append((part, index, rate, made))

    train_at_rates(rows, runs, options.output / f"{NAME}.log")
    write_tables(study_page(options.output, "papers"), NAME, table(rows))
    draw(options.output / f"{NAME}.png", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
