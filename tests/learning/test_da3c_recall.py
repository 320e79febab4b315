"""da3c with an LSTM learns a task that requires a memory, from a fixed seed in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relaax.algorithm_base import load_algorithm
from support.recall import Recall
from support.training import judge, mean_reward, train

DA3C = load_algorithm("da3c", Path())
SECTION: dict[str, Any] = {
    "episode_len": 8,
    "rewards_gamma": 0.9,
    "entropy_beta": 0.02,
    "network": {"dense": [16], "lstm_size": 8},
}


def reward_after(updates: int, **keys: Any) -> float:
    section = SECTION | keys
    parameters_client = train(DA3C, section, Recall(16, seed=4), updates, learning_rate=0.02)
    envs = Recall(64, seed=9)
    return mean_reward(judge(DA3C, section, envs, 64, parameters_client), envs, 100)


def test_lstm_learns_to_recall() -> None:
    assert reward_after(600, lstm=True) > 0.22


def test_feed_forward_only_guesses() -> None:
    """Without a memory the test above would fail. Guessing earns 1/2 every 4 steps; the standard deviation is 0.003."""
    assert 0.1 < reward_after(300) < 0.15
