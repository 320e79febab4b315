from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from relaax.algorithm_base import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, load_algorithm
from relaax.algorithm_base.testing import AgentCompliance

DA3C = load_algorithm("da3c", Path())
CONTINUOUS = Box(-1, 1, shape=(2,))
VECTOR = Box(-1, 1, shape=(4,))


class TestVectors(AgentCompliance):
    algorithm = DA3C
    config_section: ClassVar = {"path": "da3c", "network": {"dense": [8]}}
    observation_space = VECTOR
    action_space = Discrete(3)
    impossible_spaces = (
        (VECTOR, Box(0, 3, shape=(2,), dtype="int64")),
        (VECTOR, Tuple([Discrete(2), Box(0, 9, shape=(1,), dtype="uint8")])),
        (MultiDiscrete([9_999, 2]), Discrete(2)),
        (Discrete(20_000), Discrete(2)),
        (Box(0, 255, shape=(10_000, 10_000), dtype="uint8"), Discrete(2)),
    )


class TestLstm(AgentCompliance):
    algorithm = DA3C
    config_section: ClassVar = {
        "path": "da3c",
        "lstm": True,
        "gae_lambda": 0.9,
        "optimizer": "adam",
        "network": {"dense": [8], "lstm_size": 4},
    }
    observation_space = VECTOR
    action_space = Discrete(3)


class TestImages(AgentCompliance):
    algorithm = DA3C
    config_section: ClassVar = {
        "path": "da3c",
        "history_len": 2,
        "subtract_mean_image": True,
        "network": {"dense": [8], "convolutions": [{"filters": 2, "kernel": 3, "stride": 2}]},
    }
    observation_space = Box(0, 255, shape=(7, 9), dtype="uint8")
    action_space = Discrete(4, start=-1)


class TestStructuredObservations(AgentCompliance):
    algorithm = DA3C
    config_section: ClassVar = {"path": "da3c", "episode_len": 7, "network": {"dense": [], "separate": True}}
    observation_space = Dict(
        {"where": Discrete(5, start=100), "keys": MultiBinary([2, 2]), "camera": Box(0, 1, (2, 3))}
    )
    action_space = Discrete(2)


class TestImageAndNumbers(AgentCompliance):
    algorithm = DA3C
    config_section: ClassVar = {
        "path": "da3c",
        "history_len": 2,
        "subtract_mean_image": True,
        "normalize_observations": True,
        "network": {"dense": [8]},
    }
    observation_space = Dict(
        {"where": Discrete(5, start=100), "camera": Tuple([Box(0, 255, (16, 17), dtype="uint8"), Box(shape=(2,))])}
    )
    action_space = MultiDiscrete([2, 3])


MIXED = Dict({"move": Box([-1, 0], [1, np.inf]), "arms": Tuple([Discrete(3, start=-1), MultiBinary([2, 2])])})


class TestMixedActions(AgentCompliance):
    algorithm = DA3C
    config_section: ClassVar = {
        "path": "da3c",
        "normalize_rewards": "standardize",
        "entropy_weights": {"move": 0.5, "arms/1": 2},
        "network": {"dense": [8]},
    }
    observation_space = VECTOR
    action_space = MIXED
    impossible_spaces = ((VECTOR, Tuple([MIXED, Box(0, 9, (1,), dtype="int16")])),)


class TestMixedActionsOfAnLstmOnImages(AgentCompliance):
    algorithm = DA3C
    config_section: ClassVar = {
        "path": "da3c",
        "lstm": True,
        "whole_episodes": True,
        "longest_episode": 9,
        "history_len": 2,
        "normalize_observations": True,
        "network": {"dense": [8], "lstm_size": 4, "convolutions": [{"filters": 2, "kernel": 3, "stride": 2}]},
    }
    observation_space = Dict({"camera": Box(0, 255, shape=(7, 9), dtype="uint8"), "gear": MultiDiscrete([2, 3])})
    action_space = Tuple([MIXED, MultiDiscrete([2, 4])])


class TestBits(AgentCompliance):
    algorithm = DA3C
    config_section: ClassVar = {"path": "da3c", "lstm": True, "network": {"dense": [8], "lstm_size": 4}}
    observation_space = VECTOR
    action_space = MultiBinary([2, 2])
