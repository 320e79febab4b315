"""Compliance tests of async_q, async_sarsa and n_step_q."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from relaax.algorithm_base import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, load_algorithm
from relaax.algorithm_base.testing import AgentCompliance

ASYNC_Q, ASYNC_SARSA, N_STEP_Q = (load_algorithm(name, Path()) for name in ("async_q", "async_sarsa", "n_step_q"))
VECTOR = Box(-1, 1, shape=(4,))
IMAGE = Box(0, 255, shape=(9, 9), dtype="uint8")
CONVOLUTIONS = [{"filters": 2, "kernel": 3, "stride": 2}]


class TestVectors(AgentCompliance):
    algorithm = ASYNC_Q
    config_section: ClassVar = {"path": "async_q", "target_interval": 20, "network": {"dense": [8]}}
    observation_space = VECTOR
    action_space = Discrete(3)
    impossible_spaces = (
        (VECTOR, Box(-1, 1, shape=(2,))),
        (VECTOR, MultiDiscrete([2, 3])),
        (VECTOR, Tuple([Discrete(2), Discrete(3)])),
        (MultiDiscrete([9_999, 2]), Discrete(2)),
        (Box(0, 255, shape=(10_000, 10_000), dtype="uint8"), Discrete(2)),
    )


class TestDoubleDuelingImages(AgentCompliance):
    algorithm = ASYNC_Q
    config_section: ClassVar = {
        "path": "async_q",
        "double": True,
        "dueling": True,
        "errors": "huber",
        "subtract_mean_image": True,
        "history_len": 2,
        "network": {"dense": [8], "convolutions": CONVOLUTIONS},
    }
    observation_space = IMAGE
    action_space = Discrete(4, start=-1)


class TestDuelingWithImageAndNumbers(AgentCompliance):
    algorithm = ASYNC_Q
    config_section: ClassVar = {
        "path": "async_q",
        "dueling": True,
        "normalize_observations": True,
        "history_len": 2,
        "network": {"dense": [8], "convolutions": CONVOLUTIONS},
    }
    observation_space = Tuple([IMAGE, VECTOR])
    action_space = Discrete(3)


class TestSarsa(AgentCompliance):
    algorithm = ASYNC_SARSA
    config_section: ClassVar = {"path": "async_sarsa", "normalize_observations": True, "network": {"dense": [8]}}
    observation_space = VECTOR
    action_space = Discrete(3)
    impossible_spaces = ((VECTOR, MultiDiscrete([2, 3])),)


class TestNStep(AgentCompliance):
    algorithm = N_STEP_Q
    config_section: ClassVar = {"path": "n_step_q", "double": True, "update_interval": 7, "network": {"dense": [8]}}
    observation_space = Dict(
        {"where": Discrete(5, start=100), "keys": MultiBinary([2, 2]), "camera": Box(0, 1, (2, 3))}
    )
    action_space = Discrete(2)
    impossible_spaces = ((observation_space, Tuple([Discrete(2), Discrete(2)])),)


class TestNStepLstm(AgentCompliance):
    algorithm = N_STEP_Q
    config_section: ClassVar = {
        "path": "n_step_q",
        "lstm": True,
        "dueling": True,
        "optimizer": "adam",
        "network": {"dense": [8], "lstm_size": 4},
    }
    observation_space = VECTOR
    action_space = Discrete(3)


def test_refusal_of_other_actions_suggests_da3c() -> None:
    for space in (MultiDiscrete([2, 3]), MultiBinary(2), Box(-1, 1, (2,)), Tuple([Discrete(2)])):
        refused = N_STEP_Q.refusal(N_STEP_Q.configure({"path": "n_step_q"}), VECTOR, space)
        assert refused is not None
        assert refused.sentence == (
            f"n_step_q cannot handle the action space {space}: it handles one Discrete; the network estimates "
            "a value for each of its actions; da3c handles these actions"
        )
