"""da3c_cont learns the docking task in seconds, from a fixed seed. The best policy costs 0.012 per step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relaax.algorithm_base import load_algorithm
from support.docking import Docking
from support.training import judge, mean_reward, train

DA3C_CONT = load_algorithm("da3c_cont", Path())
SECTION: dict[str, Any] = {
    "episode_len": 8,
    "rewards_gamma": 0.8,
    "entropy_beta": 1e-3,
    "initial_variance": 0.3,
    "normalize_rewards": None,
    "network": {"dense": [16], "lstm_size": 16, "separate": False},
}


def cost_after(updates: int, hidden: bool = False, **keys: Any) -> float:
    section = SECTION | keys
    parameters_client = train(DA3C_CONT, section, Docking(16, 4, hidden), updates, learning_rate=0.02)
    envs = Docking(64, 9, hidden)
    return -mean_reward(judge(DA3C_CONT, section, envs, 64, parameters_client), envs, 100)


def test_feed_forward_learns_to_dock() -> None:
    assert cost_after(400, lstm=False) < 0.02


def test_whole_episodes_learn_to_dock() -> None:
    assert cost_after(600, lstm=False, whole_episodes=True) < 0.025


def test_lstm_docks_with_a_hidden_position() -> None:
    assert cost_after(500, hidden=True) < 0.03


def test_feed_forward_cannot_dock_with_a_hidden_position() -> None:
    assert cost_after(400, hidden=True, lstm=False) > 0.05


def test_docking_is_not_learned_without_normalisation() -> None:
    """Observations are 500 + 20 x. Without normalisation tanh saturates, and the tests above would fail."""
    assert cost_after(400, lstm=False, normalize_observations=False) > 0.1
