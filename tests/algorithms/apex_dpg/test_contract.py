"""Compliance tests of apex_dpg."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from relaax.algorithm_base import Box, Discrete, load_algorithm
from relaax.algorithm_base.testing import AgentCompliance

DPG = load_algorithm("apex_dpg", Path())
SMALL: dict[str, Any] = {
    "path": "apex_dpg",
    "replay_capacity": 2000,
    "learning_starts": 60,
    "batch_size": 64,
    "random_steps": 30,
    "actor_interval": 1,
    "critic_dense": [8],
}


class TestApexDpg(AgentCompliance):
    algorithm = DPG
    config_section: ClassVar = SMALL | {"normalize_observations": True, "network": {"dense": [8]}}
    observation_space = Box(-1, 1, shape=(4,))
    action_space = Box(-1, 1, shape=(2,))
    impossible_spaces = ((Box(-1, 1, shape=(4,)), Discrete(3)),)


class TestApexDpgWithImages(AgentCompliance):
    algorithm = DPG
    config_section: ClassVar = SMALL | {
        "history_len": 2,
        "removal": "lowest_priority",
        "network": {"dense": [8], "convolutions": [{"filters": 2, "kernel": 3, "stride": 2}]},
    }
    observation_space = Box(0, 255, shape=(9, 9), dtype="uint8")
    action_space = Box(-1, 1, shape=(2,))
