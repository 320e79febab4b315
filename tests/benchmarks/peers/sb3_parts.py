"""Shared parts of the Stable-Baselines3 scripts: the Atari vector environment, speed, and the end of training."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from atari_vector import games
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

ATARI = ("boxing", "pong")
ENDLESS = 10**12


class Games(VecEnv):
    """ale-py's vector environment as a VecEnv of Stable-Baselines3. It resets in the step that ends a game."""

    def __init__(self, rom: str, environments: int, seed: int) -> None:
        self._games = games(rom, environments, 0, AutoresetMode.SAME_STEP)
        self._seed_games = seed
        super().__init__(environments, self._games.single_observation_space, self._games.single_action_space)

    def reset(self) -> Any:
        return self._games.reset(seed=self._seed_games)[0]

    def step_async(self, actions: Any) -> None:
        self._games.send(actions)

    def step_wait(self) -> Any:
        observations, rewards, terminated, truncated, infos = self._games.recv()
        ended = terminated | truncated
        infos_by_game: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(ended):
            infos_by_game[i] = {"terminal_observation": infos["final_obs"][i], "TimeLimit.truncated": not terminated[i]}
        return observations, rewards, ended, infos_by_game

    def close(self) -> None:
        self._games.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs  # for the query of the render mode

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


LEAST_UPDATES = 10
"""Minimum number of updates before the warm-up time starts."""


def learning_speed(learner: Any, seconds: float, warm_up: float) -> dict[str, float]:
    """Return updates and steps per second, and their window, of a learner with replay memory after a warm-up."""
    marks: list[tuple[float, int, int]] = []
    warm: list[float] = []

    def done(watch: BaseCallback) -> bool:
        updates = watch.model._n_updates  # there is no public name
        if updates >= LEAST_UPDATES:
            warm.append(time.monotonic())
            if warm[-1] - warm[0] >= warm_up:
                marks.append((warm[-1], updates, watch.num_timesteps))
        return bool(marks) and marks[-1][0] - marks[0][0] >= seconds

    learner.learn(ENDLESS, callback=Watch(done))
    (first, updates, steps), (last, more_updates, more_steps) = marks[0], marks[-1]
    passed = last - first
    return {
        "updates_per_second": (more_updates - updates) / passed,
        "steps_per_second": (more_steps - steps) / passed,
        "updates": more_updates - updates,
        "seconds": passed,
    }


class Watch(BaseCallback):
    """A callback that ends training if `done` returns true. It calls `done` before each rollout."""

    def __init__(self, done: Callable[[BaseCallback], bool]) -> None:
        super().__init__()
        self._done = done
        self._over = False

    def _on_rollout_start(self) -> None:
        self._over = self._over or self._done(self)

    def _on_step(self) -> bool:
        return not self._over


def speed(make: Callable[[], Any], warm_up: float, seconds: float) -> dict[str, Any]:
    """Measure the steps per second of a learner over `seconds`, after `warm_up` seconds. `make` creates it."""
    marks: list[tuple[float, int]] = []

    def done(watch: BaseCallback) -> bool:
        now = time.monotonic()
        if now - begun < warm_up:
            return False
        marks.append((now, watch.num_timesteps))
        return now - marks[0][0] >= seconds

    begun = time.monotonic()
    make().learn(ENDLESS, callback=Watch(done))
    (first, before), (last, after) = marks[0], marks[-1]
    return {"steps_per_second": (after - before) / (last - first), "steps": after - before, "seconds": last - first}
