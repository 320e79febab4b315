"""sac and apex_dpg learn the docking task in seconds, from a fixed seed. The best policy costs 0.012 per step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relaax.algorithm_base import load_algorithm
from support.docking import Docking
from support.training import judge, mean_reward, train

pytestmark = pytest.mark.checks(
    "algorithms/sac", "algorithms/apex_dpg", "algorithms/_continuous", "algorithms/_replay", "relaax/nn"
)
SECTION: dict[str, Any] = {
    "rewards_gamma": 0.8,
    "normalize_observations": True,
    "replay_capacity": 10_000,
    "learning_starts": 256,
    "random_steps": 512,
    "batch_size": 64,
    "samples_per_insert": 16,
    "actor_interval": 4,
    "network": {"dense": [32], "activation": "tanh"},
}
OWN: dict[str, dict[str, Any]] = {
    "sac": {"tau": 0.02, "initial_temperature": 0.05, "target_entropy": -2},
    "apex_dpg": {"critic_dense": [32], "n_step": 2, "target_interval": 20, "noise": 0.3},
}


def cost_after(name: str, **keys: Any) -> float:
    algorithm, section = load_algorithm(name, Path()), SECTION | OWN[name] | keys
    parameters_client = train(algorithm, section, Docking(16, 4), 3_000, learning_rate=0.02)
    envs = Docking(64, 9)
    return -mean_reward(judge(algorithm, section, envs, 64, parameters_client), envs, 100)


@pytest.mark.parametrize("name", OWN)
def test_continuous_control_learns_to_dock(name: str) -> None:
    """A thrust in the middle of its bounds costs 0.9 per step; no thrust costs 1/3."""
    assert cost_after(name) < 0.04


def test_bundled_sac_learns_from_prioritised_samples() -> None:
    assert cost_after("sac", n_step=3, prioritized=True, learner="bundled") < 0.04
