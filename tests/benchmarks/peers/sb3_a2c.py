#!/usr/bin/env python3
"""Stable-Baselines3's A2C on an Atari game or a gymnasium environment: training speed, or time to a target.

The Python of its virtual environment runs this script (see venvs.py), in one process. Atari games have the network of
`da3c_ale_boxing` and ale-py's vector environment. With --as-is, `make_atari_env` creates the environments, as in
Stable-Baselines3's documentation. Other names are gymnasium ids, with Stable-Baselines3's default policy, environments
and settings: two layers of 64, tanh, separate policy and value. Writes JSON to the standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
from ale_py import ALEInterface, LoggerMode
from sb3_parts import ATARI, ENDLESS, Games, Watch, speed
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack
from torch import nn

ATARI_STEPS = 20  # steps of a rollout; longer rollouts are faster
EPISODES = 100


class Trunk(BaseFeaturesExtractor):
    """A trunk of 16 filters 8x8, stride 4; 32 filters 4x4, stride 2; 256 units; relu."""

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
    """Return the environments of Stable-Baselines3's documentation, with whole games as episodes instead of lives."""
    ALEInterface.setLoggerMode(LoggerMode.Error)
    whole = {"terminal_on_life_loss": False}
    made = make_atari_env(f"{name.capitalize()}NoFrameskip-v4", environments, seed=seed, wrapper_kwargs=whole)
    return VecFrameStack(made, 4)


def agent(options: argparse.Namespace) -> A2C:
    """Return an untrained agent."""
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


def learned(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the time from the first step until the mean return of the last 100 episodes is `target`."""
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
    parser.add_argument("name", help=f"{', '.join(ATARI)}, or a gymnasium id")
    parser.add_argument("--environments", type=int, default=16, help="number of environments (%(default)s)")
    parser.add_argument(
        "--as-is", action="store_true", help="use Stable-Baselines3's Atari wrappers, not ale-py's vector environment"
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the measurement (%(default)s)")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds before the measurement (%(default)s)")
    parser.add_argument("--target", type=float, help="measure the time to this mean return of 100 episodes")
    parser.add_argument("--max-steps", type=int, default=1_000_000, help="maximum steps (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.target is None:
        result = speed(lambda: agent(options), options.warm_up, options.seconds)
    else:
        result = learned(options)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
