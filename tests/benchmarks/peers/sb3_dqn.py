#!/usr/bin/env python3
"""Stable-Baselines3's DQN on an Atari game or a gymnasium environment: updates per second, or time to a target.

The Python of its virtual environment runs this script (see venvs.py), in one process. Atari games have ale-py's vector
environment and DQN's default network for images, which is that of Mnih et al. 2015: 32, 64 and 64 filters, 512 units.
Other names are gymnasium ids, with two layers of 256. These defaults of the library stay: Huber loss, Adam, gradients
clipped to a norm of 10, one-step returns, uniform memory. Writes JSON to the standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
from sb3_parts import ATARI, ENDLESS, Games, Watch, learning_speed
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy


def agent(options: argparse.Namespace, steps: int) -> DQN:
    """Return an untrained agent. `steps`: the total, for the exploration fraction."""
    atari = options.name in ATARI
    make: Any = Games if atari else make_vec_env
    return DQN(
        "CnnPolicy" if atari else "MlpPolicy",
        make(options.name, options.environments, options.seed),
        learning_rate=options.learning_rate,
        buffer_size=options.buffer,
        learning_starts=options.learning_starts,
        batch_size=options.batch,
        gamma=0.99,
        train_freq=options.train_freq,
        gradient_steps=options.gradient_steps,
        target_update_interval=options.target_interval,
        exploration_fraction=options.exploration_steps / steps,
        exploration_final_eps=options.final_epsilon,
        policy_kwargs=None if atari else {"net_arch": [256, 256]},
        seed=options.seed,
        device="cpu",
    )


def speed(options: argparse.Namespace) -> dict[str, Any]:
    """Measure updates and steps per second, after a warm-up of learning."""
    return learning_speed(agent(options, ENDLESS), options.seconds, options.warm_up)


def learned(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the time from the first step until a greedy evaluation is `target`, with and without evaluations."""
    alone = make_vec_env(options.name, 1, seed=options.seed + 1000)
    found: list[float] = []
    evaluating = 0.0
    evaluated = 0

    def done(watch: BaseCallback) -> bool:
        nonlocal evaluating, evaluated
        if watch.num_timesteps // options.evaluate_every > evaluated:
            evaluated = watch.num_timesteps // options.evaluate_every
            started = time.monotonic()
            found.append(float(evaluate_policy(watch.model, alone, options.episodes, deterministic=True)[0]))
            evaluating += time.monotonic() - started
        reached = bool(found) and found[-1] >= options.target
        return reached or watch.num_timesteps >= options.max_steps

    learner = agent(options, options.max_steps)
    begun = time.monotonic()
    learner.learn(options.max_steps, callback=Watch(done))
    seconds = time.monotonic() - begun
    return {
        "seconds": seconds,
        "seconds_without_evaluations": seconds - evaluating,
        "steps": learner.num_timesteps,
        "evaluation": found[-1] if found else None,
        "reached": bool(found) and found[-1] >= options.target,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help=f"{', '.join(ATARI)}, or a gymnasium id")
    parser.add_argument("--environments", type=int, default=8, help="number of environments (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="transitions of an update (%(default)s)")
    parser.add_argument(
        "--train-freq", type=int, default=4, help="steps of all environments between updates (%(default)s)"
    )
    parser.add_argument("--gradient-steps", type=int, default=1, help="updates after those steps (%(default)s)")
    parser.add_argument(
        "--buffer", type=int, default=20_000, help="capacity of the memory in transitions (%(default)s)"
    )
    parser.add_argument("--learning-starts", type=int, default=1000, help="steps before the first update (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="learning rate (%(default)s)")
    parser.add_argument(
        "--target-interval", type=int, default=10_000, help="steps between target updates (%(default)s)"
    )
    parser.add_argument("--exploration-steps", type=float, default=1000, help="(%(default)s)")
    parser.add_argument("--final-epsilon", type=float, default=0.05, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the measurement (%(default)s)")
    parser.add_argument(
        "--warm-up", type=float, default=2.0, help="seconds of learning before the measurement (%(default)s)"
    )
    parser.add_argument("--target", type=float, help="measure the time to a greedy evaluation of this score")
    parser.add_argument("--evaluate-every", type=int, default=5000, help="steps between evaluations (%(default)s)")
    parser.add_argument("--episodes", type=int, default=10, help="episodes of an evaluation (%(default)s)")
    parser.add_argument("--max-steps", type=int, default=1_000_000, help="maximum steps (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result = speed(options) if options.target is None else learned(options)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
