#!/usr/bin/env python3
"""Learn from 20 recorded episodes of an expert: by cloning alone, and from the replay memory of apex in MountainCar.

Writes demonstrations.csv, demonstrations.png and a table of demonstrations.md. What is in the CSV is not repeated.

    python tests/benchmarks/demonstrations.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from rows import Rows, study_page, write_tables

from relaax.checkpoint import CheckpointManager
from relaax.checkpoint.evaluation import read_evaluation
from relaax.checkpoint.location import open_location
from relaax.demonstrations.reading import RecordedEpisodes

ROOT = Path(__file__).resolve().parents[2]
RELAAX = Path(sys.executable).with_name("relaax")
NAME = "demonstrations"
EPISODES = 20
CLONED = {"cartpole": "da3c_gym_cartpole", "maze": ROOT / "tests" / "data" / "maze.yaml"}
"""The configurations of cloning, by the expert's name (see tests/support/experts.py)."""
MEMORY = "apex_gym_mountaincar"
TARGET = -110
KINDS = {"alone": "C0", "loaded": "C2"}
READY_SECONDS = 600


def relaax(*words: object, **options: Any) -> None:
    subprocess.run([RELAAX, *map(str, words)], cwd=ROOT / "tests", check=True, **options)


def record(name: str, folder: Path, seed: int) -> RecordedEpisodes:
    """Record the episodes of an expert."""
    program = [sys.executable, "-m", "support.experts", "ADDRESS", name, EPISODES, seed]
    relaax("record", folder, "--", *program, stderr=subprocess.DEVNULL)
    return RecordedEpisodes(folder)


def cloned(name: str, seed: int, folder: Path) -> dict[str, float]:
    """Clone an expert, and return its mean return, that of the clone, and the number of recorded steps."""
    recorded = record(name, folder / "episodes", seed)
    run, score = folder / "run", folder / "score.json"
    words = ["--seed", seed, "--run-dir", run, "--no-progress"]
    relaax("clone", folder / "episodes", CLONED[name], *words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    relaax("eval", run, "--episodes", 100, "--json", score, stdout=subprocess.DEVNULL)
    return {"expert": recorded.mean_return, "clone": json.loads(score.read_text())["mean"], "steps": recorded.steps}


def trained(kind: str, seed: int, folder: Path) -> tuple[dict[str, float], list[tuple[int, float]]]:
    """Train to the target. Return the steps with the recorded ones, and the evaluations as (step, mean return)."""
    run = folder / "run"
    words: list[object] = ["run", MEMORY, "--seed", seed, "--run-dir", run, "--no-progress"]
    words += ["--set", "run.eval_every=2500", "--set", f"run.target_evaluation={TARGET}", "--max-steps", 200_000]
    words += ["--set", "relaax-parameter-server.checkpoints-kept=1000"]
    if kind == "loaded":
        record("mountaincar", folder / "episodes", seed)
        words += ["--set", "algorithm.demonstration_priority=1"]
        words += ["--set", "algorithm.demonstration_weight=1"]
    with (folder / "run.log").open("w") as log:
        training = subprocess.Popen([RELAAX, *map(str, words)], cwd=ROOT / "tests", stdout=log, stderr=log)
        try:
            if kind == "loaded":
                wait_for(run / "logs" / "rlx-server.log", "listening on", training)
                relaax("replay", "load", folder / "episodes", run, "--no-progress")
            training.wait()
        finally:
            training.terminate()
            training.wait()
    evaluations = evaluated(run)
    reached = [step for step, mean in evaluations if mean >= TARGET]
    return {"steps": (reached or [evaluations[-1][0]])[0], "reached": bool(reached)}, evaluations


def evaluated(run: Path) -> list[tuple[int, float]]:
    """Return global step and mean return of all evaluated checkpoints of a run."""
    manager = CheckpointManager(open_location(str(run), None, None))
    found = []
    for checkpoint_id in manager.published():
        evaluation = read_evaluation(manager.store, checkpoint_id)
        if evaluation is not None and evaluation.mean is not None:
            found.append((int(manager.load(checkpoint_id).manifest["global_step"]), evaluation.mean))
    return sorted(found)


def wait_for(log: Path, text: str, process: subprocess.Popen[Any]) -> None:
    """Wait until a log contains a text. Raises RuntimeError if the process ends before, or after a time."""
    end = time.monotonic() + READY_SECONDS
    while not log.is_file() or text not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"{log}: no line with {text!r}")
        time.sleep(0.5)


def tables(rows: Rows) -> str:
    lines = ["| cloning | recorded steps | expert | clone, 100 greedy episodes, by seed |", "|---|---:|---:|---|"]
    for name in CLONED:
        if found := rows.rounds(f"clone {name}"):
            steps, experts = (statistics.mean(one[figure] for one in found) for figure in ("steps", "expert"))
            clones = "; ".join(f"{one['clone']:.3g}" for one in found)
            lines.append(f"| {name} | {steps:,.0f} | {experts:.3g} | {clones} |")
    lines += ["", f"| {MEMORY} to {TARGET} | steps, by seed | median |", "|---|---|---:|"]
    for kind in KINDS:
        if found := rows.rounds(f"memory {kind}"):
            each = [one["steps"] if one["reached"] else float("inf") for one in found]
            lines.append(f"| {kind} | {'; '.join(f'{one:,.0f}' for one in each)} | {statistics.median(each):,.0f} |")
    return "\n".join([*lines, "", f"![Greedy score of MountainCar against steps](../{NAME}.png)"])


def draw(path: Path, curves: Rows) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    for kind, color in KINDS.items():
        lines: dict[int, list[tuple[int, float]]] = {}
        for row in curves.rows:
            if row.part == f"memory {kind}":
                lines.setdefault(row.round, []).append((row.case, row.value))
        for index, line in enumerate(lines.values()):
            axes.plot(*zip(*sorted(line), strict=True), color=color, linewidth=1, label=None if index else kind)
    axes.axhline(TARGET, color="gray", linewidth=0.8, linestyle="--")
    axes.set_xlabel("environment steps, with the recorded ones")
    axes.set_ylabel("greedy evaluation, 20 episodes")
    axes.set_title(f"MountainCar-v0 by apex, with {EPISODES} episodes of an expert in its memory")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="rounds of each case (%(default)s)")
    parser.add_argument("--parts", nargs="+", choices=("clone", "memory"), default=["clone", "memory"])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder (docs/results)")
    options = parser.parse_args(arguments)
    os.environ["PYTHONPATH"] = str(ROOT / "tests")
    rows, curves = Rows(options.output / f"{NAME}.csv"), Rows(options.output / f"{NAME}-curves.csv")
    for seed in range(1, options.seeds + 1):
        for name in CLONED if "clone" in options.parts else ():
            if not rows.has(f"clone {name}", 0, seed):
                with tempfile.TemporaryDirectory() as folder:
                    rows.add(f"clone {name}", 0, seed, cloned(name, seed, Path(folder)))
        for kind in ("loaded", "alone") if "memory" in options.parts else ():
            if not rows.has(f"memory {kind}", 0, seed):
                with tempfile.TemporaryDirectory() as folder:
                    figures, evaluations = trained(kind, seed, Path(folder))
                for step, mean in evaluations:
                    curves.add(f"memory {kind}", step, seed, {"mean": mean})
                rows.add(f"memory {kind}", 0, seed, figures)
    write_tables(study_page(options.output, NAME), NAME, tables(rows))
    draw(options.output / f"{NAME}.png", curves)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
