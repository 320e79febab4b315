"""Compliance tests of sac."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from relaax.algorithm_base import Box, Dict, Discrete, Tuple, load_algorithm
from relaax.algorithm_base.testing import AgentCompliance
from relaax.configuration import ConfigurationError

SAC = load_algorithm("sac", Path())
SMALL: dict[str, Any] = {
    "path": "sac",
    "replay_capacity": 2000,
    "learning_starts": 60,
    "batch_size": 64,
    "samples_per_insert": 32,
    "random_steps": 30,
    "actor_interval": 1,
}


class TestSeparateSac(AgentCompliance):
    algorithm = SAC
    config_section: ClassVar = SMALL | {"n_step": 3, "normalize_observations": True, "network": {"dense": [8]}}
    observation_space = Box(-1, 1, shape=(4,))
    action_space = Tuple([Box(-1, 1, shape=(2,)), Box(0, 3, shape=(1, 2), dtype="float64")])
    impossible_spaces = (
        (Box(-1, 1, shape=(4,)), Discrete(3)),
        (Box(-1, 1, shape=(4,)), Box(-1, float("inf"), shape=(2,))),
        (Box(0, 255, shape=(10_000, 10_000), dtype="uint8"), Box(-1, 1, shape=(2,))),
    )


class TestBundledSac(AgentCompliance):
    algorithm = SAC
    config_section: ClassVar = SMALL | {
        "learner": "bundled",
        "prioritized": True,
        "normalize_rewards": "scale",
        "network": {"dense": [8]},
    }
    observation_space = Box(-1, 1, shape=(4,))
    action_space = Box(-2, 2, shape=(3,))


class TestSacWithImages(AgentCompliance):
    algorithm = SAC
    config_section: ClassVar = SMALL | {
        "subtract_mean_image": True,
        "history_len": 2,
        "network": {"dense": [8], "convolutions": [{"filters": 2, "kernel": 3, "stride": 2}]},
    }
    observation_space = Box(0, 255, shape=(9, 9), dtype="uint8")
    action_space = Box(-1, 1, shape=(2,))


class TestSacWithImageAndNumbers(AgentCompliance):
    algorithm = SAC
    config_section: ClassVar = SMALL | {
        "learning_starts": 12,  # so that a few final observations change the gradient of new networks
        "history_len": 2,
        "normalize_observations": True,
        "network": {"dense": [8], "convolutions": [{"filters": 2, "kernel": 3, "stride": 2}]},
    }
    observation_space = Dict({"camera": Box(0, 255, shape=(9, 9), dtype="uint8"), "speed": Box(-1, 1, shape=(2,))})
    action_space = Box(-1, 1, shape=(2,))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"learning_starts": 5_000, "replay_capacity": 1_000}, "learning would never start"),
        ({"learner": "bundled", "samples_per_insert": None}, "set learner to separate"),
        ({"tau": 0}, "tau"),
        ({"initial_temperature": 0}, "initial_temperature"),
        ({"lstm": True}, "lstm"),
    ],
)
def test_contradictory_keys_of_sac_are_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        SAC.configure({"path": "sac"} | keys)
