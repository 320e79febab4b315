"""da3c learns with composite observations and with several choices per action, from a fixed seed in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relaax.algorithm_base import load_algorithm
from support.signs import CameraAndRoom, CameraAndSpeed, Levers, Signs, Switches
from support.training import judge, mean_reward, train

pytestmark = pytest.mark.checks("algorithms/da3c", "relaax/algorithm_base", "relaax/nn", "relaax/optim")

DA3C = load_algorithm("da3c", Path())
SECTION: dict[str, Any] = {"episode_len": 4, "rewards_gamma": 0.0, "entropy_beta": 0.05, "normalize_rewards": None}
IMAGE = {"network": {"dense": [32]}, "history_len": 2}


def reward_after(kind: type[Signs], updates: int, **keys: Any) -> float:
    """Return the mean reward of greedy actions after training; the largest possible is 1."""
    section = SECTION | keys
    parameters_client = train(DA3C, section, kind(16, seed=4), updates, learning_rate=0.01)
    envs = kind(64, seed=9)
    return mean_reward(judge(DA3C, section, envs, 64, parameters_client), envs, 20)


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [CameraAndSpeed, CameraAndRoom])
def test_image_and_other_parts_are_both_used(kind: type[Signs]) -> None:
    """An agent that uses only one part reaches half of the reward."""
    assert reward_after(kind, 300, **IMAGE) > 0.95


@pytest.mark.parametrize("kind", [Levers, Switches])
def test_each_of_several_choices_is_learned(kind: type[Signs]) -> None:
    assert reward_after(kind, 400) > 0.95
