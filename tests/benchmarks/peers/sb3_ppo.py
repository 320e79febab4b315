#!/usr/bin/env python3
"""Stable-Baselines3's PPO on a gymnasium environment: training speed.

The Python of its virtual environment runs this script (see venvs.py), in one process. It has Stable-Baselines3's
default policy and environments: two layers of 64, tanh, separate policy and value. Writes JSON to the standard output.
"""

from __future__ import annotations

import argparse
import json
import sys

import torch
from sb3_parts import speed
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="a gymnasium id")
    parser.add_argument("--environments", type=int, default=16, help="number of environments (%(default)s)")
    parser.add_argument("--steps", type=int, default=32, help="steps of a rollout (%(default)s)")
    parser.add_argument("--minibatch", type=int, default=256, help="steps of a minibatch (%(default)s)")
    parser.add_argument("--epochs", type=int, default=10, help="passes over a rollout (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the measurement (%(default)s)")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds before the measurement (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    def make() -> PPO:
        environments = make_vec_env(options.name, options.environments, seed=0)
        rollout = {"n_steps": options.steps, "batch_size": options.minibatch, "n_epochs": options.epochs}
        return PPO("MlpPolicy", environments, device="cpu", **rollout)

    print(json.dumps(speed(make, options.warm_up, options.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
