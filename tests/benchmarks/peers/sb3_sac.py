#!/usr/bin/env python3
"""Stable-Baselines3's SAC on a gymnasium environment: updates per second, with one update after each step.

The Python of its virtual environment runs this script (see venvs.py), in one process, with the defaults of the library:
two layers of 256, batches of 256, Adam, a learned temperature. Writes JSON to the standard output.
"""

from __future__ import annotations

import argparse
import json
import sys

import torch
from sb3_parts import learning_speed
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env


def speed(options: argparse.Namespace) -> dict[str, float]:
    """Measure updates and steps per second, after a warm-up of learning."""
    learner = SAC("MlpPolicy", make_vec_env(options.name, 1), learning_starts=options.learning_starts, device="cpu")
    return learning_speed(learner, options.seconds, options.warm_up)


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
