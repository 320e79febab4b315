#!/usr/bin/env python3
"""Figures of Nair et al. 2015 and Horgan et al. 2018 in small, on LunarLander-v3.

- `bundles`: Gorila with 1, 2 and 4 bundles, with and without bounds of staleness and losses (Nair et al., Figure 5).
- `actors`: Ape-X with 1 to 16 actors (Horgan et al., Figure 4).
- `exploration`, `sampling`, `capacity`, `removal`: one key of Ape-X changes (Horgan et al., Figures 5 and 6).

The environments of `bundles` and `actors` are throttled to a rate, like a game or a robot, so the result shows the
effect of more of them, not the speed of the cores. The score is that of greedy evaluations during training. Writes
replay-papers.csv, replay-papers-curves.csv, a picture per study, and tables of the page `papers`. A training that is
in the CSV is not repeated.

    python tests/benchmarks/replay_papers.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from rows import Rows, study_page, write_tables
from training_runs import ROOT, Trained, Training, train_all

NAME = "replay-papers"
SCORE = 100.0
"""The evaluation whose steps and seconds are compared. A landing is worth about 200, a crash -100."""
EVALUATION = "evaluation/mean_return"


@dataclass(frozen=True)
class Case:
    """A training of a study: keys that differ, and the share of the machine that it uses. `clients`: throttled ones."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    clients: int | None = None
    load: float = 1.0


@dataclass(frozen=True)
class Study:
    """Trainings to compare, by label.

    `x`: whether their speed matters, so seconds are drawn, or only their steps. `rate`: steps per second of each
    throttled environment.
    """

    title: str
    config: str
    limit: tuple[object, ...]
    x: str
    cases: Mapping[str, Case]
    rate: float = 200.0


BOUNDED = {"algorithm.max_staleness": 20, "algorithm.loss_outlier_deviations": 3.0}
SMALL = {"algorithm.replay_capacity": 20_000}
STEPS = ("--max-steps", 120_000)
STUDIES = {
    "bundles": Study(
        "Gorila: bundles",
        "gorila_gym_lunarlander",
        ("--max-time", "10m"),
        "seconds",
        {
            "1": Case(clients=1, load=0.3),
            "2": Case(clients=2, load=0.5),
            "4": Case(clients=4),
            "2, bounded": Case(BOUNDED, clients=2, load=0.5),
            "4, bounded": Case(BOUNDED, clients=4),
        },
    ),
    "actors": Study(
        "Ape-X: actors",
        "apex_gym_lunarlander",
        ("--max-time", "5m"),
        "seconds",
        {
            # Actors and learners do not wait, as in the paper.
            str(actors): Case({"algorithm.samples_per_insert": None}, clients=actors)
            for actors in (1, 2, 4, 8, 16)
        },
        rate=100.0,
    ),
    "exploration": Study(
        "Ape-X: exploration",
        "apex_gym_lunarlander",
        STEPS,
        "steps",
        {
            "ladder": Case(),
            "0.4 for all": Case({"algorithm.epsilon_exponent": 0.0}),
            "0.1 for all": Case({"algorithm.epsilon_exponent": 0.0, "algorithm.epsilon": 0.1}),
        },
    ),
    "sampling": Study(
        "Ape-X: sampling",
        "apex_gym_lunarlander",
        STEPS,
        "steps",
        {"prioritised": Case(), "uniform": Case({"algorithm.prioritized": False})},
    ),
    "capacity": Study(
        "Ape-X: capacity",
        "apex_gym_lunarlander",
        STEPS,
        "steps",
        {
            "200,000": Case(),
            "20,000": Case(SMALL),
            "5,000": Case({"algorithm.replay_capacity": 5_000}),
        },
    ),
    "removal": Study(
        "Ape-X: removal from 20,000",
        "apex_gym_lunarlander",
        STEPS,
        "steps",
        {
            "oldest": Case(SMALL),
            "lowest priority": Case({**SMALL, "algorithm.removal": "lowest_priority"}),
            "inverse priority": Case({**SMALL, "algorithm.removal": "inverse_priority"}),
        },
    ),
}


def training(study: Study, case: Case, seed: int) -> Training:
    """Return a training with greedy evaluations every 5,000 steps, which does not end at a score."""
    settings: dict[str, Any] = {"run.target_return": None, "run.target_evaluation": None, **case.settings}
    options: list[object] = ["--seed", seed, *study.limit, "--eval-every", 5_000, "--eval-episodes", 10]
    if case.clients is not None:
        options += ["--clients", case.clients, "--envs-per-client", 1]
        throttle = f'support.real_time:RealTime={{"rate": {study.rate}}}'
        settings["run.arguments"] = ["--wrapper", throttle, "--path", str(ROOT / "tests")]
    config = ROOT / "config" / f"{study.config}.yaml"
    return Training(config, options, settings, case.load, scalars=(EVALUATION,))


def part_of(name: str, label: str) -> str:
    """Return the name of a case in the CSV: that of the first study that has the same case."""
    study = STUDIES[name]
    return next(
        f"{other} {its_label}"
        for other, its in STUDIES.items()
        for its_label, case in its.cases.items()
        if (its.config, its.limit, its.rate, case) == (study.config, study.limit, study.rate, study.cases[label])
    )


def plan(options: argparse.Namespace, rows: Rows) -> list[tuple[str, int, Training]]:
    """Return part, seed and training of each run that is not in `rows`."""
    runs: dict[tuple[str, int], Training] = {}
    for name in options.studies:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for label, case in STUDIES[name].cases.items():
                part = part_of(name, label)
                if not rows.has(part, 0, seed):
                    runs[part, seed] = training(STUDIES[name], case, seed)
    return [(part, seed, made) for (part, seed), made in runs.items()]


def median_of(rounds: list[dict[str, float]], figure: str) -> str:
    """Return the median of the seeds as a cell. A seed that did not reach the score counts as infinite."""
    value = statistics.median(one.get(figure, float("inf")) for one in rounds)
    return "–" if value == float("inf") else f"{value:,.0f}"


def table(rows: Rows, name: str, seeds: int) -> str:
    """Return the table of a study: medians of its seeds."""
    study = STUDIES[name]
    length = f"{study.limit[1]:,} steps" if study.x == "steps" else str(study.limit[1])
    lines = [
        f"{study.title}, {length}, {'one seed' if seeds == 1 else f'medians of {seeds} seeds'}:",
        "",
        f"| | steps to {SCORE:g} | seconds to {SCORE:g} | mean of evaluations | best | steps/s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for label in study.cases:
        rounds = rows.rounds(part_of(name, label))
        if rounds:
            cells = [median_of(rounds, figure) for figure in ("steps", "seconds", "mean", "best", "steps/s")]
            lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"![Evaluations against {study.x}](../{NAME}-{name}.png)"])


def draw(path: Path, curves: Rows, name: str) -> None:
    """Draw the evaluations of all seeds, smoothed over five, against steps or seconds."""
    from matplotlib.figure import Figure

    study = STUDIES[name]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for index, label in enumerate(study.cases):
        part = part_of(name, label)
        for number, seed in enumerate(sorted({row.round for row in curves.rows if row.part == part})):
            every = (curves.figures(part, case, seed) for case in curves.cases(part))
            points = [figures for figures in every if figures]
            means = [statistics.fmean(p["score"] for p in points[max(0, i - 4) : i + 1]) for i in range(len(points))]
            shown = label if number == 0 else None
            style = ("-", "--", ":")[number % 3]
            axes.plot([p[study.x] for p in points], means, color=f"C{index}", linestyle=style, label=shown)
    axes.axhline(SCORE, linestyle="--", color="grey", linewidth=1)
    axes.set_title(study.title)
    axes.set_xlabel("environment steps" if study.x == "steps" else "seconds")
    axes.set_ylabel("greedy evaluation, mean of five")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES), help="studies to run (all)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (%(default)s)")
    parser.add_argument("--first-seed", type=int, default=1, help="the first seed (%(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder (docs/results)")
    options = parser.parse_args(arguments)
    rows, curves = Rows(options.output / f"{NAME}.csv"), Rows(options.output / f"{NAME}-curves.csv")
    runs = plan(options, rows)

    def done(index: int, outcome: Trained) -> None:
        part, seed, _ = runs[index]
        curve = outcome.curves[EVALUATION]
        for number, (step, seconds, score) in enumerate(curve):
            curves.add(part, number, seed, {"steps": step, "seconds": seconds, "score": score})
        reached = next(((step, seconds) for step, seconds, score in curve if score >= SCORE), None)
        scores = [score for _, _, score in curve]
        figures = {
            "mean": statistics.fmean(scores),
            "best": max(scores),
            "steps/s": outcome.summary["steps_per_second"],
        }
        rows.add(part, 0, seed, figures | (dict(zip(("steps", "seconds"), reached, strict=True)) if reached else {}))

    titles = [(f"{part}, seed {seed}", made) for part, seed, made in runs]
    train_all(titles, 1.0, done, options.output / f"{NAME}.log")
    page = study_page(options.output, "papers")
    for name in options.studies:
        write_tables(page, f"{NAME}-{name}", table(rows, name, options.seeds))
        draw(options.output / f"{NAME}-{name}.png", curves, name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
