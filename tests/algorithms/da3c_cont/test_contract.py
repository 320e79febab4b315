from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from relaax.algorithm_base import Box, Dict, Discrete, MultiDiscrete, Tuple, load_algorithm
from relaax.algorithm_base.testing import AgentCompliance

DA3C_CONT = load_algorithm("da3c_cont", Path())
VECTOR = Box(-1, 1, shape=(4,))
TORQUES = Box([-2, 0, -np.inf], [2, 10, np.inf])
SMALL = {"dense": [6], "lstm_size": 3}


class TestFeedForward(AgentCompliance):
    algorithm = DA3C_CONT
    config_section: ClassVar = {"path": "da3c_cont", "lstm": False, "episode_len": 5, "network": SMALL}
    observation_space = VECTOR
    action_space = TORQUES
    impossible_spaces = (
        (VECTOR, Box(0, 255, shape=(2,), dtype="uint8")),
        (MultiDiscrete([9_999, 2]), TORQUES),
        (Discrete(20_000), TORQUES),
    )


class TestLstm(AgentCompliance):
    algorithm = DA3C_CONT
    config_section: ClassVar = {
        "path": "da3c_cont",
        "episode_len": 7,
        "normalize_rewards": "scale",
        "spherical": True,
        "sync_interval": 2,
        "network": SMALL | {"separate": True},
    }
    observation_space = Dict({"where": Discrete(5, start=100), "speed": Box(shape=(2, 3), dtype="float64")})
    action_space = Tuple([TORQUES, Box(-1, 1, shape=(2, 2), dtype="float64")])


class TestLstmWithImageAndNumbers(AgentCompliance):
    algorithm = DA3C_CONT
    config_section: ClassVar = {
        "path": "da3c_cont",
        "whole_episodes": True,
        "history_len": 2,
        "network": SMALL | {"convolutions": [{"filters": 2, "kernel": 3, "stride": 2}]},
    }
    observation_space = Dict({"camera": Box(0, 255, shape=(7, 9), dtype="uint8"), "speed": VECTOR})
    action_space = TORQUES


class TestWholeEpisodes(AgentCompliance):
    algorithm = DA3C_CONT
    config_section: ClassVar = {
        "path": "da3c_cont",
        "whole_episodes": True,
        "longest_episode": 9,
        "normalize_rewards": "standardize",
        "network": SMALL,
    }
    observation_space = VECTOR
    action_space = TORQUES


class TestImages(AgentCompliance):
    algorithm = DA3C_CONT
    config_section: ClassVar = {
        "path": "da3c_cont",
        "lstm": False,
        "history_len": 2,
        "episode_len": 4,
        "network": SMALL | {"convolutions": [{"filters": 2, "kernel": 3, "stride": 2}]},
    }
    observation_space = Box(0, 255, shape=(7, 9), dtype="uint8")
    action_space = TORQUES
