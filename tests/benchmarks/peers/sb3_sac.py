#!/usr/bin/env python3
"""Stable-Baselines3's SAC on a gymnasium environment: updates per second, with one update after each step.

The Python of its virtual environment runs this script (see venvs.py), in one process, with the defaults of the library:
two layers of 256, batches of 256, Adam, a learned temperature. Writes JSON to the standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
from sb3_parts import ENDLESS, Watch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

LEAST_UPDATES = 10
"""Minimum number of updates before the warm-up time starts."""


def speed(options: argparse.Namespace) -> dict[str, float]:
    """Measure updates and steps per second, after a warm-up of learning."""
    marks: list[tuple[float, int, int]] = []
    warm: list[float] = []

    def done(watch: BaseCallback) -> bool:
        updates = watch.model._n_updates  # there is no public name
        if updates >= LEAST_UPDATES:
            warm.append(time.monotonic())
            if warm[-1] - warm[0] >= options.warm_up:
                marks.append((warm[-1], updates, watch.num_timesteps))
        return bool(marks) and marks[-1][0] - marks[0][0] >= options.seconds

    learner = SAC("MlpPolicy", make_vec_env(options.name, 1), learning_starts=options.learning_starts, device="cpu")
    learner.learn(ENDLESS, callback=Watch(done))
    (first, updates, steps), (last, more_updates, more_steps) = marks[0], marks[-1]
    seconds = last - first
    return {
        "updates_per_second": (more_updates - updates) / seconds,
        "steps_per_second": (more_steps - steps) / seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="a gymnasium id")
    parser.add_argument("--learning-starts", type=int, default=1000, help="steps before the first update (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the measurement (%(default)s)")
    parser.add_argument(
        "--warm-up", type=float, default=2.0, help="seconds of learning before the measurement (%(default)s)"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(json.dumps(speed(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
