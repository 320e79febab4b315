#!/usr/bin/env python3
"""Time to a fixed score by number of workers, as in Table 2 of Mnih et al. 2016: four methods, 1 to 16 workers.

Each worker has one environment, which is throttled to a rate, like a game or a robot. So a machine with few cores can
run 16 of them, and the result shows the effect of more workers, not the speed of the cores. The score is the mean
return of ten greedy episodes with each checkpoint. A training ends when it reaches the score. Writes value-workers.csv,
value-workers-curves.csv, a picture per game, and tables of value.md. A training that is in the CSV is not repeated.

    python tests/benchmarks/workers.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from minatar.gym import register_envs
from rows import Rows, study_page, write_tables
from training_runs import NO_TARGETS, ROOT, Trained, Training, train_all

METHODS = {"async_q": "one-step Q", "async_sarsa": "one-step Sarsa", "n_step_q": "n-step Q", "da3c": "A3C"}
PAPER = {"async_q": (1, 3.0, 6.3, 13.3, 24.1), "async_sarsa": (1, 2.8, 5.9, 13.1, 22.1)}
PAPER |= {"n_step_q": (1, 2.7, 5.9, 10.7, 17.2), "da3c": (1, 2.1, 3.7, 6.9, 12.5)}
"""Table 2 of Mnih et al. 2016: mean speed-up over seven Atari games, for the numbers in `WORKERS`."""
WORKERS = (1, 2, 4, 8, 16)
NAME = "value-workers"
RUN_LOAD = 0.05
"""Share of the machine that every run needs to start its processes, in addition to the share for its steps."""
SCHEDULED_STEPS = 500_000
"""Steps at which the learning rate reaches zero: later than the end of any training."""


@dataclass(frozen=True)
class Game:
    """A game and its target score.

    `environment`: gymnasium's id. `rate`: steps per second of each environment. `checkpoint_steps`: steps between two
    checkpoints at that rate. `most_steps`: maximum steps of a training. `exploration_frames`: for value methods.
    """

    title: str
    environment: str
    score: float
    rate: float
    checkpoint_steps: int
    most_steps: int
    exploration_frames: int
    seeds: int


GAMES = {
    "gym_cartpole": Game("CartPole-v1", "CartPole-v1", 250, 50, 2_500, 100_000, 20_000, 3),
    "minatar_breakout": Game("MinAtar Breakout", "MinAtar/Breakout-v1", 3, 250, 5_000, 250_000, 50_000, 1),
}


def plan(options: argparse.Namespace, rows: Rows) -> Iterator[tuple[str, int, int, Training]]:
    """Yield part, workers, seed and training of each run not in `rows`. Fewer workers come first: they take longest."""
    for name, workers in product(options.games, options.workers):
        for number, method in product(range(GAMES[name].seeds), options.methods):
            seed = options.first_seed + number
            if not rows.has(f"{name} {method}", workers, seed):
                yield f"{name} {method}", workers, seed, training(name, method, workers, seed, options.steps_per_second)


def training(name: str, method: str, workers: int, seed: int, steps_per_second: float) -> Training:
    """Return a training to the game's score. `steps_per_second`: the capacity of the machine."""
    game = GAMES[name]
    wrapper = f'support.real_time:RealTime={{"rate": {game.rate}}}'
    settings: dict[str, Any] = {
        **NO_TARGETS,
        "run.arguments": ["--wrapper", wrapper, "--path", str(ROOT / "tests")],
        "run.checkpoint_interval": game.checkpoint_steps / (workers * game.rate),
        "relaax-parameter-server.checkpoints-kept": 1000,
        "algorithm.max_global_step": SCHEDULED_STEPS,
    }
    if method != "da3c":
        settings["algorithm.exploration_frames"] = game.exploration_frames
    config = ROOT / "config" / f"{method}_{name}.yaml"
    if not config.is_file():
        config = ROOT / "config" / f"n_step_q_{name}.yaml"
        settings["algorithm.path"] = str(ROOT / "algorithms" / method)
    run = ["--clients", workers, "--envs-per-client", 1, "--seed", seed, "--max-steps", game.most_steps]
    load = RUN_LOAD + workers * game.rate / steps_per_second
    return Training(config, run, settings, load, environment=game.environment, score=game.score)


def seconds_to_score(rows: Rows, part: str, workers: int) -> float | None:
    """Return the median of the seeds; None if most of them did not reach the score."""
    rounds = rows.rounds(part, workers)
    if not rounds:
        return None
    value = statistics.median(r["seconds"] if r["reached"] else float("inf") for r in rounds)
    return None if value == float("inf") else value


def tables(rows: Rows, options: argparse.Namespace) -> str:
    """Return the tables of speed-ups, one per game."""
    text = []
    for name in options.games:
        game = GAMES[name]
        head = f"| {' | '.join(map(str, options.workers))} |\n|---|{'---:|' * len(options.workers)}"
        factors = []
        for method, title in METHODS.items():
            part = f"{name} {method}"
            row = [seconds_to_score(rows, part, n) for n in options.workers]
            ours = ["–" if s is None or row[0] is None else f"{row[0] / s:.1f}" for s in row]
            paper = dict(zip(WORKERS, PAPER[method], strict=True))
            both = [f"{factor} ({paper.get(n, '–')})" for factor, n in zip(ours, options.workers, strict=True)]
            factors.append(f"| {title} | {' | '.join(both)} |")
        runs = [(r["steps/s"], n) for m in METHODS for n in options.workers for r in rows.rounds(f"{name} {m}", n)]
        seeds = f"medians of {game.seeds} seeds" if game.seeds > 1 else "one seed"
        held = min((pace / (n * game.rate) for pace, n in runs), default=0)
        text.append(
            f"{game.title}, a greedy evaluation of {game.score:g}, environments at {game.rate:g} steps/s (from the "
            f"start of the first to the end, {held:.0%} of it or more), {seeds}.\n\n"
            "Speed-up (the paper's):\n\n"
            f"| workers {head}\n"
            + "\n".join(factors)
            + f"\n\n![Score against steps and against time](../{NAME}-{name}.png)"
        )
    return "\n\n".join(text)


def draw(path: Path, curves: Rows, name: str, options: argparse.Namespace) -> None:
    """Draw score against steps and against time (Figures 3 and 4 of the paper), with a column per method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 6.4), layout="constrained")
    panels = figure.subplots(2, len(METHODS), sharey=True)
    styles = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
    for column, (method, title) in enumerate(METHODS.items()):
        for index, workers in enumerate(options.workers):
            part = f"{name} {method} {workers}"
            seeds = sorted({row.round for row in curves.rows if row.part == part})
            for number, seed in enumerate(seeds):
                every = (curves.figures(part, case, seed) for case in curves.cases(part))
                points = [figures for figures in every if figures]
                for axes, x in zip(panels[:, column], ("steps", "seconds"), strict=True):
                    label = f"{workers}" if number == 0 else None
                    xs, ys = [p[x] for p in points], [p["score"] for p in points]
                    axes.plot(xs, ys, color=f"C{index}", linestyle=styles[index % 5], alpha=0.8, label=label)
        panels[0, column].set_title(title)
        panels[0, column].set_xlabel("environment steps")
        panels[1, column].set_xlabel("seconds")
        panels[1, column].set_xscale("log")
        for axes in panels[:, column]:
            axes.axhline(GAMES[name].score, linestyle="--", color="grey", linewidth=1)
            axes.grid(alpha=0.3)
    for axes in panels[:, 0]:
        axes.set_ylabel("greedy evaluation")
    drawn = next((axes for axes in panels[0] if axes.get_legend_handles_labels()[0]), None)
    if drawn is not None:
        drawn.legend(title="workers", fontsize=8)
    figure.savefig(path, dpi=120)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES), help="games to train (all)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="methods to train (all)")
    parser.add_argument("--workers", type=int, nargs="+", default=list(WORKERS), help="numbers of workers (1 2 4 8 16)")
    parser.add_argument("--first-seed", type=int, default=300, help="the first seed (%(default)s)")
    parser.add_argument(
        "--steps-per-second",
        type=float,
        default=4000,
        help="steps/s of all runs together that the machine easily sustains (%(default)g)",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder (docs/results)")
    options = parser.parse_args(arguments)
    register_envs()
    rows, curves = Rows(options.output / f"{NAME}.csv"), Rows(options.output / f"{NAME}-curves.csv")
    runs = list(plan(options, rows))

    def done(index: int, outcome: Trained) -> None:
        part, workers, seed, _ = runs[index]
        pace = outcome.summary["steps_per_second"]
        for number, (step, score) in enumerate(outcome.evaluations):
            curves.add(f"{part} {workers}", number, seed, {"steps": step, "seconds": step / pace, "score": score})
        step, score = outcome.evaluations[-1]
        reached = score >= runs[index][3].score
        rows.add(part, workers, seed, {"reached": reached, "steps": step, "seconds": step / pace, "steps/s": pace})

    titles = [(f"{part}, {workers} workers, seed {seed}", training) for part, workers, seed, training in runs]
    train_all(titles, 1.0, done, options.output / f"{NAME}.log")
    write_tables(study_page(options.output, "value"), NAME, tables(rows, options))
    for name in options.games:
        draw(options.output / f"{NAME}-{name}.png", curves, name, options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
