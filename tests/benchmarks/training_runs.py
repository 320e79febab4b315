"""Trainings of a study: through the real ports, several at a time, each told what it cost and how it went."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from relaax.checkpoint import Checkpoint, CheckpointManager, LocalStore
from relaax.cli.plot import Curve, read_curve
from relaax.policy import Policy, load
from relaax.policy.file import policy_of

ROOT = Path(__file__).resolve().parents[2]
EPISODES = 10
"""Of the evaluation of a checkpoint."""


@dataclass(frozen=True)
class Training:
    """A configuration, options of `relaax run`, and keys.

    `load`: the share of the machine that it takes, 1 is all. `scalars`: TensorBoard's names of what is asked for.
    `episodes`: of a greedy evaluation at its end. `environment`: gymnasium's id of that of greedy evaluations of its
    checkpoints, in this process, which cost little; the first of `score` ends it.
    """

    config: Path
    options: Sequence[object]
    settings: Mapping[str, Any]
    load: float = 1.0
    scalars: Sequence[str] = ()
    episodes: int = 0
    environment: str | None = None
    score: float = math.inf


@dataclass(frozen=True)
class Trained:
    """What became of it.

    `curves`: those of the scalars. `score`: mean return of the evaluation at its end, or None. `evaluations`: global
    step of each checkpoint, and the mean return of its episodes.
    """

    summary: Mapping[str, Any]
    curves: Mapping[str, Curve]
    score: float | None
    evaluations: Sequence[tuple[int, float]]


def trained(training: Training) -> Trained:
    """Train from nothing. Raises RuntimeError with what the training printed if it fails."""
    with tempfile.TemporaryDirectory() as name:
        folder, evaluations = Path(name) / "run", list[tuple[int, float]]()
        keys = (part for key, value in training.settings.items() for part in ("--set", f"{key}={json.dumps(value)}"))
        words = ("run", training.config, "--no-progress", "--run-dir", folder, *training.options, *keys)
        if training.environment is None:
            _relaax(*words)
        else:
            evaluations = _watched(words, folder, training.environment, training.score)
        score = None
        if training.episodes:
            _relaax("eval", folder, "--episodes", training.episodes, "--jobs", 1, "--json", folder / "score.json")
            score = json.loads((folder / "score.json").read_text("utf-8"))["mean"]
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
        curves = {scalar: read_curve(folder / "metrics", scalar) for scalar in training.scalars}
    return Trained(summary, curves, score, evaluations)


def _watched(words: Sequence[object], run: Path, environment: str, score: float) -> list[tuple[int, float]]:
    """Run a training, play ten episodes with each of its checkpoints, and end it at the first of `score`.

    Returns global steps and mean returns. Raises RuntimeError with what the training printed if it fails.
    """
    manager, played = CheckpointManager(LocalStore(run / "checkpoints")), dict[str, tuple[int, float]]()
    with tempfile.TemporaryFile("w+") as output:
        training = subprocess.Popen(_command(*words), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        ended = False
        while not ended and all(mean < score for _, mean in played.values()):
            time.sleep(1)
            ended = training.poll() is not None  # before the look, which then finds the last checkpoint too
            for checkpoint_id in sorted(set(manager.published()) - played.keys()):
                played[checkpoint_id] = _played(manager.load(checkpoint_id), run / "policy.safetensors", environment)
        training.terminate()
        if training.wait() not in (0, 130):  # ended by itself, or by the line above
            output.seek(0)
            raise RuntimeError(f"{' '.join(_command(*words))}: exit code {training.returncode}\n{output.read()}")
    return [(step, mean) for _, (step, mean) in sorted(played.items()) if step]  # the first is what it began with


def _played(checkpoint: Checkpoint, file: Path, environment: str) -> tuple[int, float]:
    """Return the global step of a checkpoint, and what its policy, written to `file`, returns."""
    file.write_bytes(b"".join(policy_of(checkpoint)))
    return int(checkpoint.manifest["global_step"]), _mean_return(load(file, greedy=True), environment)


def _mean_return(policy: Policy, environment: str) -> float:
    """Return the mean return of as many episodes as environments, always the same ones."""
    environments = gymnasium.make_vec(environment, EPISODES, vectorization_mode="sync")
    observations, _ = environments.reset(seed=0)
    returns, running = np.zeros(EPISODES), np.ones(EPISODES, np.bool_)
    first = running
    while running.any():
        observations, rewards, terminated, truncated, _ = environments.step(policy.act(observations, first))
        returns += np.where(running, rewards, 0)
        ended = terminated | truncated
        running, first = running & ~ended, np.zeros_like(running)
    environments.close()
    return float(returns.mean())


def _relaax(*words: object) -> None:
    """Run a command of `relaax`. Raises RuntimeError with what it printed if it fails."""
    command = _command(*words)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "relaax.cli.main", *map(str, words)]


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
