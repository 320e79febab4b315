"""Trainings of a study: through the real ports, several at a time, each told what it cost and how it went."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaax.cli.plot import Curve, read_curve

ROOT = Path(__file__).resolve().parents[2]
EVALUATION = "evaluation/mean_return"


@dataclass(frozen=True)
class Training:
    """A configuration, options of `relaax run`, and keys.

    `load`: the share of the machine that it takes, 1 is all. `scalars`: TensorBoard's names of what is asked for.
    `episodes`: of a greedy evaluation at its end.
    """

    config: Path
    options: Sequence[object]
    settings: Mapping[str, Any]
    load: float = 1.0
    scalars: Sequence[str] = ()
    episodes: int = 0


@dataclass(frozen=True)
class Trained:
    """What became of it. `evaluations`: steps, seconds from the start, mean return. `curves`: those of the scalars.

    `score`: mean return of the evaluation at its end, None without one.
    """

    summary: Mapping[str, Any]
    evaluations: Curve
    curves: Mapping[str, Curve]
    score: float | None

    @property
    def reached(self) -> bool:
        """Whether it ended since its target was reached."""
        return bool(self.summary["status"] == "target_reached")


def trained(training: Training) -> Trained:
    """Train from nothing. Raises RuntimeError with what the training printed if it fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        keys = (part for key, value in training.settings.items() for part in ("--set", f"{key}={json.dumps(value)}"))
        _relaax("run", training.config, "--no-progress", "--run-dir", folder, *training.options, *keys)
        score = None
        if training.episodes:
            _relaax("eval", folder, "--episodes", training.episodes, "--jobs", 1, "--json", folder / "score.json")
            score = json.loads((folder / "score.json").read_text("utf-8"))["mean"]
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
        curves = {scalar: read_curve(folder / "metrics", scalar) for scalar in training.scalars}
        found = read_curve(folder / "metrics", EVALUATION) if summary["evaluation"] is not None else []
    first = max(0.0, summary["seconds"] - found[-1][1]) if found else 0.0  # an evaluation is what happens last
    return Trained(summary, [(step, first + seconds, value) for step, seconds, value in found], curves, score)


def _relaax(*words: object) -> None:
    """Run a command of `relaax`. Raises RuntimeError with what it printed if it fails."""
    command = [sys.executable, "-m", "relaax.cli.main", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def train_all(
    trainings: Sequence[tuple[str, Training]], machine: float, done: Callable[[int, Trained], None], log: Path
) -> None:
    """Train each, as many at once as have a `load` of `machine` together, in order; `done(index, outcome)` for each.

    Prints progress. What fails is written to `log`, and is not in the study.
    """
    began, waiting, running = time.monotonic(), list(range(len(trainings))), dict[Future[Trained], int]()
    finished = 0
    with ThreadPoolExecutor(64) as threads:
        while waiting or running:
            busy = sum(trainings[index][1].load for index in running.values())
            fitting = [i for i in waiting if not running or busy + trainings[i][1].load <= machine]
            if fitting:
                waiting.remove(fitting[0])
                running[threads.submit(trained, trainings[fitting[0]][1])] = fitting[0]
                continue
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                index, finished = running.pop(future), finished + 1
                left = (time.monotonic() - began) / finished * (len(trainings) - finished)
                say = f"{finished}/{len(trainings)}  {trainings[index][0]}: "
                try:
                    outcome = future.result()
                except RuntimeError as error:
                    with log.open("a", encoding="utf-8") as file:
                        file.write(f"{error}\n")
                    say += f"failed, see {log}"
                else:
                    done(index, outcome)
                    summary = outcome.summary
                    say += f"{summary['status']} after {summary['env_steps']:,} steps and {summary['seconds']:.0f} s"
                print(f"{say}; about {left / 60:.0f} min left", flush=True)
