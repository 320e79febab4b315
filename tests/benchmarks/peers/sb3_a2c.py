#!/usr/bin/env python3
"""Stable-Baselines3's A2C on a game of ours, for comparison: how fast it trains, or how soon it has learned.

Run by its own environment's Python (see venvs.py). One process. Atari: the network of `da3c_ale_boxing` on ale-py's
vector environment or, with --as-is, on the environments that its documentation makes (`make_atari_env`). What has no
name there is an id of gymnasium, with the policy, environments and settings that Stable-Baselines3 has by default: two
layers of 64, tanh, policy and value apart. Writes JSON to the standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
from ale_py import ALEInterface, LoggerMode
from sb3_parts import ATARI, ENDLESS, Games, Watch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack
from torch import nn

ATARI_STEPS = 20  # of a rollout: more of them are faster than few
EPISODES = 100


class Trunk(BaseFeaturesExtractor):
    """16 filters of 8x8 by 4, 32 of 4x4 by 2, 256 units, all relu."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, 256)
        self._layers = nn.Sequential(
            nn.Conv2d(observation_space.shape[0], 16, 8, 4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 9 * 9, 256),
            nn.ReLU(),
        )

    def forward(self, observations: Any) -> Any:
        return self._layers(observations)


def environments_as_is(name: str, environments: int, seed: int) -> VecEnv:
    """Games as its documentation makes them; whole ones, as elsewhere here, and not a life each."""
    ALEInterface.setLoggerMode(LoggerMode.Error)
    whole = {"terminal_on_life_loss": False}
    made = make_atari_env(f"{name.capitalize()}NoFrameskip-v4", environments, seed=seed, wrapper_kwargs=whole)
    return VecFrameStack(made, 4)


def agent(options: argparse.Namespace) -> A2C:
    """Not trained yet."""
    if options.name not in ATARI:
        environments = make_vec_env(options.name, options.environments, seed=options.seed)
        return A2C("MlpPolicy", environments, seed=options.seed, device="cpu")
    make = environments_as_is if options.as_is else Games
    return A2C(
        "CnnPolicy",
        make(options.name, options.environments, options.seed),
        n_steps=ATARI_STEPS,
        ent_coef=0.01,
        policy_kwargs={"features_extractor_class": Trunk, "net_arch": []},
        seed=options.seed,
        device="cpu",
    )


def speed(options: argparse.Namespace) -> dict[str, Any]:
    """Steps per second over a stretch of time, behind a warm-up."""
    marks: list[tuple[float, int]] = []

    def done(watch: BaseCallback) -> bool:
        now = time.monotonic()
        if now - begun < options.warm_up:
            return False
        marks.append((now, watch.num_timesteps))
        return now - marks[0][0] >= options.seconds

    begun = time.monotonic()
    agent(options).learn(ENDLESS, callback=Watch(done))
    (first, before), (last, after) = marks[0], marks[-1]
    return {"steps_per_second": (after - before) / (last - first), "steps": after - before, "seconds": last - first}


def learned(options: argparse.Namespace) -> dict[str, Any]:
    """Wall time until the mean return of the last 100 episodes is `target`, from the first step on."""
    means: list[float] = []

    def done(watch: BaseCallback) -> bool:
        episodes = watch.model.ep_info_buffer
        if len(episodes) == EPISODES:
            means.append(sum(episode["r"] for episode in episodes) / EPISODES)
        reached = bool(means) and means[-1] >= options.target
        return reached or watch.num_timesteps >= options.max_steps

    learner = agent(options)
    begun = time.monotonic()
    learner.learn(ENDLESS, callback=Watch(done))
    return {
        "seconds": time.monotonic() - begun,
        "steps": learner.num_timesteps,
        "mean_return": means[-1] if means else None,
        "reached": bool(means) and means[-1] >= options.target,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help=f"{', '.join(ATARI)}, or an id of gymnasium")
    parser.add_argument("--environments", type=int, default=16, help="in this process (%(default)s)")
    parser.add_argument("--as-is", action="store_true", help="Atari by its own wrappers, not ale-py's vector")
    parser.add_argument("--threads", type=int, default=1, help="of torch (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="that are measured (%(default)s)")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds before them (%(default)s)")
    parser.add_argument("--target", type=float, help="measure how long it takes to this mean return of 100 episodes")
    parser.add_argument("--max-steps", type=int, default=1_000_000, help="at which learning is given up (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result = speed(options) if options.target is None else learned(options)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
