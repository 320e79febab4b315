#!/usr/bin/env python3
"""Steps to the target of a configuration if an expert, or an adversary, takes 20 % of the first 5,000 steps.

Evaluations have no takeover: this process plays greedy episodes with the checkpoints. A training ends at the first
checkpoint that reaches the target. The expert and the adversary act for some seconds at a time, at random places (see
tests/support/takeover.py). Trainings alone and with an expert alternate. Writes takeover.csv, takeover.png and a table
of takeover.md. A training that is in the CSV is not repeated.

    python tests/benchmarks/takeover.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from rows import Rows, study_page, write_tables
from training_runs import ROOT, Trained, Training, train_all

from relaax.cli.plot import Curve

NAME = "takeover"
KINDS = {"alone": "C0", "expert": "C2", "adversary": "C3"}
"""Kinds of trainings, by the driver that takes over, and the colors of their curves."""
CHOSEN = "actions/chosen"
BAR = 0.7
"""The largest wanted ratio of the steps with an expert to the steps alone."""


@dataclass(frozen=True)
class Task:
    """A bundled configuration and its target in greedy evaluations of `episodes` episodes.

    environments: number over all clients. length: steps of a takeover. every: minimum steps between two evaluations.
    """

    algorithm: str
    environment: str
    config: str
    wrapper: str
    target: float
    episodes: int
    environments: int
    length: int
    every: int

    @property
    def title(self) -> str:
        return f"{self.environment} by {self.algorithm}"


TASKS = {
    "apex_cartpole": Task("apex", "CartPole-v1", "apex_gym_cartpole", "CartPoleExpert", 475, 10, 8, 125, 500),
    "sac_pendulum": Task("sac", "Pendulum-v1", "sac_gym_pendulum", "PendulumExpert", -180, 30, 1, 100, 200),
}


def plan(options: argparse.Namespace, rows: Rows) -> Iterator[tuple[str, str, int, Training]]:
    """Yield task, kind, seed and training of each run that is not in `rows`. Those of the adversary are the last."""
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for kinds in (("alone", "expert"), ("adversary",)):
        for seed, kind, task in product(seeds, kinds, options.tasks):
            if not rows.has(f"{task} {kind}", 0, seed):
                yield task, kind, seed, training(TASKS[task], kind, seed)


def training(task: Task, kind: str, seed: int) -> Training:
    """Return a training to the task's target."""
    settings: dict[str, Any] = {
        "run.target_evaluation": None,
        "run.eval_every": None,
        "run.checkpoint_interval": 2,
        "relaax-parameter-server.checkpoints-kept": 1000,
    }
    # Alone, the wrapper takes no step, so that the environments are the same.
    form = {"environments": task.environments, "length": task.length, "wrong": kind == "adversary"}
    form |= {"steps": 0} if kind == "alone" else {}
    wrapper = f"support.takeover:{task.wrapper}={json.dumps(form)}"
    settings["run.arguments"] = ["--wrapper", wrapper, "--path", str(ROOT / "tests"), "--taken-action", "taken_action"]
    return Training(
        ROOT / "config" / f"{task.config}.yaml",
        ["--seed", seed],
        settings,
        load=0.5,
        scalars=(CHOSEN,),
        environment=task.environment,
        score=task.target,
        checkpoint_episodes=task.episodes,
        checkpoint_steps=task.every,
    )


def count(curve: Curve) -> float:
    """Return the number of chosen actions from the curve of their share."""
    return sum(share * (step - before) for (before, _, _), (step, _, share) in pairwise([(0, 0.0, 0.0), *curve]))


def steps_of(rows: Rows, task: str, kind: str) -> list[float]:
    """Return the steps to the target by seed; infinity if it was not reached."""
    return [r["steps"] if r["reached"] else float("inf") for r in rows.rounds(f"{task} {kind}")]


def number(steps: float) -> str:
    return "not reached" if steps == float("inf") else f"{steps:,.0f}"


def table(rows: Rows, tasks: Sequence[str]) -> str:
    """Return the table of steps to the target."""
    lines = [
        "| task, target | takeover | steps to the target, by seed | median | over alone |",
        "|---|---|---|---:|---:|",
    ]
    for task in tasks:
        alone = steps_of(rows, task, "alone")
        for kind in KINDS:
            if found := steps_of(rows, task, kind):
                median = statistics.median(found)
                ratio = f"{median / statistics.median(alone):.2f}" if kind != "alone" and alone else ""
                title = f"{TASKS[task].title}, {TASKS[task].target:g}"
                lines.append(f"| {title} | {kind} | {'; '.join(map(number, found))} | {number(median)} | {ratio} |")
    return "\n".join([*lines, "", f"![Steps to the target, by task and takeover](../{NAME}.png)"])


def draw(path: Path, rows: Rows, tasks: Sequence[str]) -> None:
    """Draw the steps to the target by kind, a point for each seed, with a panel for each task."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(tasks), 3.6), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for place, (kind, color) in enumerate(KINDS.items()):
            found = [steps for steps in steps_of(rows, task, kind) if steps < float("inf")]
            axes.plot([place] * len(found), found, "o", color=color, alpha=0.7)
            axes.plot([place - 0.2, place + 0.2], [statistics.median(found)] * 2, color="black")
        bar = BAR * statistics.median(steps_of(rows, task, "alone"))
        axes.axhline(bar, color="gray", linewidth=0.8, linestyle="--", label=f"{BAR:g} of the median alone")
        axes.set_title(f"{TASKS[task].title}, {TASKS[task].target:g}")
        axes.set_xticks(range(len(KINDS)), list(KINDS))
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)
    figure.axes[0].set_ylabel("environment steps to the target")
    figure.axes[0].legend()
    figure.savefig(path, dpi=120)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="tasks to train (all)")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each kind (%(default)s)")
    parser.add_argument("--first-seed", type=int, default=1, help="seed of the first training (%(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder (docs/results)")
    options = parser.parse_args(arguments)
    rows = Rows(options.output / f"{NAME}.csv")
    runs = list(plan(options, rows))

    def done(index: int, outcome: Trained) -> None:
        task, kind, seed, _ = runs[index]
        reached = [found for found in outcome.evaluations if found[1] >= TASKS[task].target]
        step, score = (reached or outcome.evaluations[-1:])[0]
        chosen = count(outcome.curves[CHOSEN])
        rows.add(f"{task} {kind}", 0, seed, {"steps": step, "reached": bool(reached), "score": score, "chosen": chosen})

    titles = [(f"{task} {kind}, seed {seed}", run) for task, kind, seed, run in runs]
    train_all(titles, 1.0, done, options.output / f"{NAME}.log")
    tasks = [task for task in TASKS if rows.rounds(f"{task} alone")]
    write_tables(study_page(options.output, NAME), NAME, table(rows, tasks))
    draw(options.output / f"{NAME}.png", rows, tasks)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
