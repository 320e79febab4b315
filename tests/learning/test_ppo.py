"""ppo learns small tasks from a fixed seed in seconds: real actions, and a memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relaax.algorithm_base import load_algorithm
from support.docking import Docking
from support.recall import Recall
from support.training import judge, mean_reward, train

PPO = load_algorithm("ppo", Path())
SECTION: dict[str, Any] = {"episode_len": 16, "rewards_gamma": 0.8, "normalize_rewards": None}
DOCKING = SECTION | {
    "normalize_observations": True,
    "initial_variance": 0.3,
    "entropy_beta": 1e-3,
    "network": {"dense": [16]},
}
RECALL = SECTION | {"episode_len": 8, "rewards_gamma": 0.9, "network": {"dense": [16], "lstm_size": 8}}


def cost_after(updates: int, **keys: Any) -> float:
    section = DOCKING | keys
    trained = train(PPO, section, Docking(16, 4), updates, learning_rate=0.02)
    envs = Docking(64, 9)
    return -mean_reward(judge(PPO, section, envs, 64, trained), envs, 100)


def reward_after(updates: int, **keys: Any) -> float:
    section = RECALL | keys
    trained = train(PPO, section, Recall(16, seed=4), updates, learning_rate=0.02)
    envs = Recall(64, seed=9)
    return mean_reward(judge(PPO, section, envs, 64, trained), envs, 100)


def test_ppo_learns_to_dock() -> None:
    """The best policy costs 0.012 per step."""
    assert cost_after(800) < 0.03


def test_ppo_with_an_lstm_learns_to_recall() -> None:
    """A perfect memory earns 0.25 per step, and a guess 0.125."""
    assert reward_after(1200, lstm=True) > 0.22
