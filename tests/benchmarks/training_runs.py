"""The trainings of a study: through the real ports, several at a time, with cost and outcome of each."""

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
NO_TARGETS: Mapping[str, Any] = {"run.target_return": None, "run.target_evaluation": None, "run.eval_every": None}
"""Keys of a training that ends after its steps, whatever it reaches, and is not evaluated meanwhile."""


@dataclass(frozen=True)
class Training:
    """A training: a configuration, options of `relaax run`, and keys.

    `load`: the share of the machine that it uses; 1 is the whole machine. `scalars`: TensorBoard tags of the curves to
    return. `episodes`: episodes of a greedy evaluation at the end, with `evaluation_options`; 0: no evaluation.
    `environment`: a gymnasium id. If it is set, this process plays `checkpoint_episodes` greedy episodes with each
    checkpoint that is `checkpoint_steps` after the last one or later. The training ends at the first that reaches
    `score`.
    """

    config: Path
    options: Sequence[object]
    settings: Mapping[str, Any]
    load: float = 1.0
    scalars: Sequence[str] = ()
    episodes: int = 0
    evaluation_options: Sequence[object] = ()
    environment: str | None = None
    score: float = math.inf
    checkpoint_episodes: int = 10
    checkpoint_steps: int = 0


@dataclass(frozen=True)
class Trained:
    """The outcome of a training.

    `curves`: by scalar. `score`: mean return of the evaluation at the end, or None. `evaluations`: global step and mean
    return of each checkpoint.
    """

    summary: Mapping[str, Any]
    curves: Mapping[str, Curve]
    score: float | None
    evaluations: Sequence[tuple[int, float]]


def trained(training: Training) -> Trained:
    """Train from scratch. If the training fails, raise RuntimeError with its output."""
    with tempfile.TemporaryDirectory() as name:
        folder, evaluations = Path(name) / "run", list[tuple[int, float]]()
        keys = (part for key, value in training.settings.items() for part in ("--set", f"{key}={json.dumps(value)}"))
        words = ("run", training.config, "--no-progress", "--run-dir", folder, *training.options, *keys)
        if training.environment is None:
            _relaax(*words)
        else:
            evaluations = _watched(words, folder, training)
        score = None
        if training.episodes:
            played = ("--episodes", training.episodes, "--jobs", 1, *training.evaluation_options)
            _relaax("eval", folder, *played, "--json", folder / "score.json")
            score = json.loads((folder / "score.json").read_text("utf-8"))["mean"]
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
        curves = {scalar: read_curve(folder / "metrics", scalar) for scalar in training.scalars}
    return Trained(summary, curves, score, evaluations)


def _watched(words: Sequence[object], run: Path, settings: Training) -> list[tuple[int, float]]:
    """Run a training, play episodes with each checkpoint, and stop at the first that reaches `settings.score`.

    Returns global steps and mean returns. If the training fails, raises RuntimeError with its output.
    """
    manager, played = CheckpointManager(LocalStore(run / "checkpoints")), list[tuple[int, float]]()
    seen: set[str] = set()
    with tempfile.TemporaryFile("w+") as output:
        training = subprocess.Popen(_command(*words), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        ended = False
        while not ended and all(mean < settings.score for _, mean in played):
            time.sleep(1)
            ended = training.poll() is not None  # before published(), which then includes the last checkpoint
            for checkpoint_id in sorted(set(manager.published()) - seen):
                seen.add(checkpoint_id)
                step = int(manager.manifest(checkpoint_id)["global_step"])
                if not played or step >= played[-1][0] + settings.checkpoint_steps:
                    played.append(_played(manager.load(checkpoint_id), run / "policy.safetensors", settings))
        training.terminate()
        if training.wait() not in (0, 130):  # ended by itself, or by terminate()
            output.seek(0)
            raise RuntimeError(f"{' '.join(_command(*words))}: exit code {training.returncode}\n{output.read()}")
    return [(step, mean) for step, mean in played if step]  # without the initial checkpoint


def _played(checkpoint: Checkpoint, file: Path, settings: Training) -> tuple[int, float]:
    """Write the policy of a checkpoint to `file`. Return its global step and its mean return."""
    file.write_bytes(b"".join(policy_of(checkpoint)))
    assert settings.environment is not None
    score = _mean_return(load(file, greedy=True), settings.environment, settings.checkpoint_episodes)
    return int(checkpoint.manifest["global_step"]), score


def _mean_return(policy: Policy, environment: str, episodes: int) -> float:
    """Return the mean return of episodes with fixed seeds."""
    environments = gymnasium.make_vec(environment, episodes, vectorization_mode="sync")
    observations, _ = environments.reset(seed=0)
    returns, running = np.zeros(episodes), np.ones(episodes, np.bool_)
    first = running
    while running.any():
        observations, rewards, terminated, truncated, _ = environments.step(policy.act(observations, first))
        returns += np.where(running, rewards, 0)
        ended = terminated | truncated
        running, first = running & ~ended, np.zeros_like(running)
    environments.close()
    return float(returns.mean())


def _relaax(*words: object) -> None:
    """Run a command of `relaax`. If it fails, raise RuntimeError with its output."""
    command = _command(*words)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "relaax.cli.main", *map(str, words)]


def train_all(
    trainings: Sequence[tuple[str, Training]], machine: float, done: Callable[[int, Trained], None], log: Path
) -> None:
    """Run all trainings, and call `done(index, outcome)` for each that succeeds.

    Trainings run at the same time, in order, while their total `load` is at most `machine`. Prints progress. The errors
    of failed trainings are appended to `log`.
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
                line = f"{finished}/{len(trainings)}  {trainings[index][0]}: "
                try:
                    outcome = future.result()
                except RuntimeError as error:
                    with log.open("a", encoding="utf-8") as file:
                        file.write(f"{error}\n")
                    line += f"failed, see {log}"
                else:
                    done(index, outcome)
                    summary = outcome.summary
                    line += f"{summary['status']} after {summary['env_steps']:,} steps and {summary['seconds']:.0f} s"
                print(f"{line}; about {left / 60:.0f} min left", flush=True)
