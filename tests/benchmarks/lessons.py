#!/usr/bin/env python3
"""A task that is not learned at its full difficulty within a million steps, and is learned with lessons.

FrozenLake on a map of 16 x 16 without slipping (tests/support/far_lake.py), by ppo. alone: all episodes start in the
corner, 30 steps from the goal. lessons: the first episodes start near the goal, later episodes farther away, and the
last lesson starts in the corner. drawn: the distance is drawn from 1 to 30 all the time. The task is learned when the
mean return of the last lesson's last 100 episodes is 0.95. The score is the mean return of greedy episodes from the
corner, at the end. Writes lessons.csv, lessons-curves.csv, lessons.png and a table of lessons.md. A training that is in
the CSV is not repeated.

    python tests/benchmarks/lessons.py
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from rows import Rows, study_page, write_tables
from training_runs import ROOT, Trained, Training, train_all

from relaax.cli.plot import Curve

NAME = "lessons"
FAR = 30
LESSONS = [
    {"parameters": {"distance": {"low": 1, "high": high}}, "until": {"mean_return": 0.8}} for high in (4, 8, 15, FAR)
]
KINDS: dict[str, tuple[Any, list[Any], int]] = {
    "lessons": (FAR, [*LESSONS, {"name": "corner"}], 100_000),
    "drawn": ({"low": 1, "high": FAR}, [], 100_000),
    "alone": (FAR, [], 1_000_000),
}
"""The values of `distance`, the lessons, and the steps of a training."""
LEARNED = 0.95
COLORS = {"lessons": "C2", "drawn": "C1", "alone": "C0"}
RETURN, LESSON, OF_LESSON = "episode/mean_return_100", "lesson/number", "lesson/mean_return"


def training(kind: str, seed: int) -> Training:
    """Return a training of one kind."""
    distance, lessons, steps = KINDS[kind]
    settings: dict[str, Any] = {
        "run.name": "support.far_lake:FarLake",
        "run.path": [str(ROOT / "tests")],
        "run.arguments": ["--parameters", "options"],
        "run.envs_per_client": 32,
        "run.target_return": None,
        "environment-parameters.distance": distance,
        "algorithm.episode_len": 16,
        "algorithm.epochs": 4,
        "algorithm.minibatches": 2,
        "algorithm.entropy_beta": 0.01,
        "algorithm.rewards_gamma": 0.99,
        "algorithm.max_global_step": steps,
    }
    if lessons:
        settings["curriculum.lessons"] = lessons
    return Training(
        ROOT / "config" / "ppo_gym_cartpole.yaml",
        ["--seed", seed],
        settings,
        scalars=(RETURN, LESSON, OF_LESSON),
        episodes=10,
        evaluation_options=["--set", f"environment-parameters.distance={FAR}"],
    )


def learned(curves: Mapping[str, Curve], lessons: int) -> float:
    """Return the step at which the last lesson is learned; infinity if it is not."""
    numbers = {step: number for step, _, number in curves[LESSON]}
    returns = {step: mean for step, _, mean in curves[RETURN]}
    for step, _, mean in curves[OF_LESSON]:
        if numbers.get(step) == max(lessons, 1) and min(mean, returns.get(step, 0.0)) >= LEARNED:
            return step
    return math.inf


def table(rows: Rows) -> str:
    """Return the table of steps and scores."""
    lines = [
        "| starts | learned after, by seed | steps of the training | mean of 100 at the end | greedy, from the corner |"
    ]
    lines.append("|---|---|---:|---|---|")
    for kind, (_, _, most) in KINDS.items():
        if found := rows.rounds(kind):
            steps = "; ".join(f"{r['learned']:,.0f}" if math.isfinite(r["learned"]) else "not" for r in found)
            ends, scores = ("; ".join(f"{r[name]:.2f}" for r in found) for name in ("return", "score"))
            lines.append(f"| {kind} | {steps} | {most:,} | {ends} | {scores} |")
    return "\n".join([*lines, "", f"![Mean return of 100 episodes and lesson against steps](../{NAME}.png)"])


def draw(path: Path, curves: Rows) -> None:
    """Draw the mean return and the lesson against steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), (RETURN, LESSON), strict=True):
        for kind, color in COLORS.items():
            points: dict[int, list[tuple[int, float]]] = {}
            for row in curves.rows:
                if row.part == kind and row.figure == name:
                    points.setdefault(row.round, []).append((row.case, row.value))
            for index, line in enumerate(points.values()):
                if name == RETURN or kind == "lessons":
                    axes.plot(*zip(*line, strict=True), color=color, linewidth=1, label=None if index else kind)
        axes.set_xlabel("environment steps")
        axes.set_xscale("log")
        axes.grid(alpha=0.3)
        axes.set_ylabel("mean return of 100 episodes" if name == RETURN else "lesson")
    figure.axes[0].legend()
    figure.savefig(path, dpi=120)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of starts (all)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind (%(default)s)")
    parser.add_argument("--first-seed", type=int, default=1, help="seed of the first training (%(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder (docs/results)")
    options = parser.parse_args(arguments)
    rows, curves = Rows(options.output / f"{NAME}.csv"), Rows(options.output / f"{NAME}-curves.csv")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    runs = [(kind, seed) for seed in seeds for kind in options.kinds if not rows.has(kind, 0, seed)]

    def done(index: int, outcome: Trained) -> None:
        kind, seed = runs[index]
        for name in (RETURN, LESSON):
            curve = outcome.curves[name]
            for step, _, value in [*curve[:: max(1, len(curve) // 100)], curve[-1]]:
                curves.add(kind, step, seed, {name: value})
        assert outcome.score is not None
        figures = {"learned": learned(outcome.curves, len(KINDS[kind][1])), "return": outcome.curves[RETURN][-1][2]}
        rows.add(kind, 0, seed, {**figures, "score": outcome.score, "seconds": outcome.summary["seconds"]})

    titles = [(f"{kind}, seed {seed}", training(kind, seed)) for kind, seed in runs]
    train_all(titles, 1.0, done, options.output / f"{NAME}.log")
    write_tables(study_page(options.output, NAME), NAME, table(rows))
    draw(options.output / f"{NAME}.png", curves)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
