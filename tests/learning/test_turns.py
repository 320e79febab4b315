"""Agents learn a game of two players who take turns, by playing against themselves, from a fixed seed in seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relaax.algorithm_base import Leaves, StepResult, load_algorithm
from support.nim import BEST, Nim, greedy_takes
from support.training import train

COMMON: dict[str, Any] = {"rewards_gamma": 0.9, "normalize_rewards": None, "network": {"dense": []}, "seed": 3}
OWN_KEYS: dict[str, dict[str, Any]] = {
    "da3c": {"episode_len": 3, "entropy_beta": 0.02},
    "n_step_q": {
        "update_interval": 3,
        "target_interval": 500,
        "final_epsilons": [0.2],
        "final_epsilon_probabilities": [1],
        "exploration_frames": 10_000,
        "held_out_states": 0,
    },
    "apex": {
        "n_step": 2,
        "replay_capacity": 4_000,
        "learning_starts": 200,
        "batch_size": 64,
        "samples_per_insert": 8,
        "target_interval": 20,
        "dueling": False,
        "actor_interval": 10,
        "held_out_states": 0,
    },
}
UPDATES = {"da3c": 600, "n_step_q": 600, "apex": 1200}


class CountedIdle(Nim):
    """Play the same game, but mark idle rows as normal steps."""

    def step(self, actions: Leaves) -> StepResult:
        return replace(super().step(actions), unwanted=None)


def learned(name: str, envs: Nim, updates: int, out_of_step: bool) -> dict[int, int]:
    algorithm, section = load_algorithm(name, Path()), COMMON | OWN_KEYS[name]
    trained = train(algorithm, section, envs, updates, out_of_step=out_of_step)
    return greedy_takes(algorithm, algorithm.configure({"path": name} | section), trained)


@pytest.mark.parametrize("name", OWN_KEYS)
def test_best_moves_are_found(name: str) -> None:
    assert learned(name, Nim(8, seed=4), UPDATES[name], out_of_step=True) == BEST


@pytest.mark.parametrize("name", OWN_KEYS)
def test_counted_idle_rows_hide_the_best_moves(name: str) -> None:
    """The test above does not pass by chance."""
    assert learned(name, CountedIdle(8, seed=4), UPDATES[name], out_of_step=False)[5] == 0
