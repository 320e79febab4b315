"""The compliance tests with action masks and mixed actions, for every algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from relaax.algorithm_base import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, load_algorithm
from relaax.algorithm_base.testing import AgentCompliance

VECTOR, CAMERA = Box(-1, 1, shape=(3,)), Box(0, 255, shape=(36, 36), dtype="uint8")
MASKED = Dict({"observation": VECTOR, "action_mask": Box(0, 1, shape=(5,), dtype="int8")})
SMALL = {"network": {"dense": [8]}}
REPLAY = SMALL | {"learning_starts": 8, "replay_capacity": 64, "batch_size": 4, "actor_interval": 5}
WRONG = ((MASKED, Discrete(4)),)


class TestDa3c(AgentCompliance):
    algorithm = load_algorithm("da3c", Path())
    config_section: ClassVar = SMALL | {"path": "da3c"}
    observation_space = MASKED
    action_space = Discrete(5, start=-2)
    impossible_spaces = WRONG


class TestDa3cChoicesLstm(AgentCompliance):
    algorithm = load_algorithm("da3c", Path())
    config_section: ClassVar = {"path": "da3c", "lstm": True, "network": {"dense": [8], "lstm_size": 4}}
    observation_space = MASKED
    action_space = MultiDiscrete([2, 3])


class TestDa3cMixedWholeEpisodes(AgentCompliance):
    algorithm = load_algorithm("da3c", Path())
    config_section: ClassVar = SMALL | {
        "path": "da3c",
        "whole_episodes": True,
        "overlap": False,
        "entropy_weights": {"legs/1": 0.5, "aim": 0},
    }
    observation_space = MASKED
    action_space = Dict(
        {"aim": Box(-2, 2, (2,)), "legs": Tuple([Discrete(2), MultiBinary(2)]), "use": MultiDiscrete([3])}
    )
    impossible_spaces = ((MASKED, Dict({"aim": Box(-2, 2, (2,))})),)


class TestDa3cImages(AgentCompliance):
    algorithm = load_algorithm("da3c", Path())
    config_section: ClassVar = {"path": "da3c", "network": {"dense": [8]}}
    observation_space = Dict({"camera": CAMERA, "action_mask": MultiBinary(3)})
    action_space = Discrete(3)


class TestPpo(AgentCompliance):
    algorithm = load_algorithm("ppo", Path())
    config_section: ClassVar = SMALL | {"path": "ppo", "episode_len": 7, "minibatches": 1, "overlap": True}
    observation_space = MASKED
    action_space = Dict({"aim": Box(-2, 2, (2,)), "use": MultiDiscrete([2, 3])})
    impossible_spaces = WRONG


class TestAsyncQ(AgentCompliance):
    algorithm = load_algorithm("async_q", Path())
    config_section: ClassVar = SMALL | {"path": "async_q", "double": True, "dueling": True}
    observation_space = MASKED
    action_space = Discrete(5, start=7)
    impossible_spaces = WRONG


class TestSarsa(AgentCompliance):
    algorithm = load_algorithm("async_sarsa", Path())
    config_section: ClassVar = SMALL | {"path": "async_sarsa"}
    observation_space = MASKED
    action_space = Discrete(5)


class TestNStepQLstm(AgentCompliance):
    algorithm = load_algorithm("n_step_q", Path())
    config_section: ClassVar = {
        "path": "n_step_q",
        "lstm": True,
        "dueling": True,
        "network": {"dense": [8], "lstm_size": 4},
    }
    observation_space = MASKED
    action_space = Discrete(5)


class TestGorila(AgentCompliance):
    algorithm = load_algorithm("gorila", Path())
    config_section: ClassVar = REPLAY | {"path": "gorila"}
    observation_space = MASKED
    action_space = Discrete(5)
    impossible_spaces = WRONG


class TestApexImages(AgentCompliance):
    algorithm = load_algorithm("apex", Path())
    config_section: ClassVar = REPLAY | {"path": "apex", "actor_interval": 1}
    observation_space = Dict({"camera": CAMERA, "action_mask": MultiBinary(3)})
    action_space = Discrete(3)
