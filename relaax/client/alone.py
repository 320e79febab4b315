"""Measure how fast environments can be stepped alone."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from relaax.client.autoreset import autoreset_of
from relaax.client.measuring import Lines
from relaax.client.random_agent import RandomAgent

DRAWN = 1024


def step_alone(env: Any, seed: int | None, file: str | Path) -> NoReturn:
    """Step an Env or a VectorEnv of gymnasium until an exception ends it, and write to `file` how far it is.

    1,024 actions are drawn beforehand and taken in turn; beside `env.step` there are a clock and a counter, and a reset
    if the environment does not reset by itself. The file has lines of `time` and `steps`, as those of `Measured`.
    """
    is_vector = hasattr(env, "single_observation_space")
    space = env.single_action_space if is_vector else env.action_space
    agent = RandomAgent(space, env.num_envs if is_vector else None, seed)
    actions = itertools.cycle([agent.init(None) for _ in range(DRAWN)])
    steps = 0
    with Lines(file) as lines:
        try:
            for taken in (_vector if is_vector else _single)(env, actions, seed):
                steps += taken
                if time.monotonic() >= lines.due:
                    lines.write({"steps": steps})
        finally:
            lines.write({"steps": steps})
    raise AssertionError("the actions never end")


def _single(env: Any, actions: Iterable[Any], seed: int | None) -> Iterator[int]:
    """Return how many steps were taken each time: 0 for the first reset, then 1."""
    env.reset(seed=seed)
    yield 0
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
        yield 1


def _vector(env: Any, actions: Iterable[Any], seed: int | None) -> Iterator[int]:
    """Return the same of N environments: 0, then N without those that used a step to reset."""
    mode = autoreset_of(env)
    env.reset(seed=seed)
    yield 0
    begin = 0
    for batch in actions:
        _, _, terminated, truncated, _ = env.step(batch)
        yield env.num_envs - begin
        if mode == "next_step":
            begin = int(np.count_nonzero(np.logical_or(terminated, truncated)))
        elif mode == "disabled":
            ended = np.logical_or(terminated, truncated)
            if ended.any():
                env.reset(options={"reset_mask": ended})
