"""Compliance tests of gorila and apex."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from relaax.algorithm_base import Box, Dict, Discrete, MultiBinary, MultiDiscrete, load_algorithm
from relaax.algorithm_base.network import reward_bound
from relaax.algorithm_base.testing import AgentCompliance
from relaax.configuration import ConfigurationError
from relaax.hosting.loader import Algorithm

GORILA, APEX = (load_algorithm(name, Path()) for name in ("gorila", "apex"))
VECTOR = Box(-1, 1, shape=(4,))
IMAGE = Box(0, 255, shape=(9, 9), dtype="uint8")
SMALL: dict[str, Any] = {"replay_capacity": 2000, "learning_starts": 60, "batch_size": 64, "samples_per_insert": 32}


class TestBundle(AgentCompliance):
    algorithm = GORILA
    config_section: ClassVar = SMALL | {
        "path": "gorila",
        "target_interval": 20,
        "actor_interval": 3,
        "network": {"dense": [8]},
    }
    observation_space = VECTOR
    action_space = Discrete(3)
    impossible_spaces = (
        (VECTOR, Box(-1, 1, shape=(2,))),
        (VECTOR, MultiDiscrete([2, 3])),
        (MultiDiscrete([9_999, 2]), Discrete(2)),
        (Box(0, 255, shape=(10_000, 10_000), dtype="uint8"), Discrete(2)),
    )


class TestBundleWithImages(AgentCompliance):
    algorithm = GORILA
    config_section: ClassVar = SMALL | {
        "path": "gorila",
        "double": True,
        "dueling": True,
        "prioritized": True,
        "n_step": 3,
        "subtract_mean_image": True,
        "history_len": 2,
        "network": {"dense": [8], "convolutions": [{"filters": 2, "kernel": 3, "stride": 2}]},
    }
    observation_space = IMAGE
    action_space = Discrete(4, start=-1)


class TestBundleWithImageAndNumbers(AgentCompliance):
    algorithm = GORILA
    config_section: ClassVar = SMALL | {
        "path": "gorila",
        "n_step": 3,
        "errors": "squared",
        "history_len": 2,
        "normalize_observations": True,
        "network": {"dense": [8], "convolutions": [{"filters": 2, "kernel": 3, "stride": 2}]},
    }
    observation_space = Dict({"camera": IMAGE, "speed": VECTOR})
    action_space = Discrete(3)


class TestSeparateLearner(AgentCompliance):
    algorithm = GORILA
    config_section: ClassVar = SMALL | {
        "path": "gorila",
        "learner": "separate",
        "actor_interval": 1,
        "normalize_observations": True,
        "network": {"dense": [8]},
    }
    observation_space = Dict(
        {"where": Discrete(5, start=100), "keys": MultiBinary([2, 2]), "camera": Box(0, 1, (2, 3))}
    )
    action_space = Discrete(3)


class TestApex(AgentCompliance):
    algorithm = APEX
    config_section: ClassVar = SMALL | {
        "path": "apex",
        "samples_per_insert": None,
        "normalize_observations": True,
        "normalize_rewards": "scale",
        "actor_interval": 1,
        "network": {"dense": [8]},
    }
    observation_space = VECTOR
    action_space = Discrete(3)
    impossible_spaces = ((VECTOR, MultiDiscrete([2, 3])),)


@pytest.mark.parametrize("algorithm", [GORILA, APEX])
def test_rewards_are_scaled_for_numbers_and_clipped_for_images(algorithm: Algorithm) -> None:
    config = algorithm.configure({"path": algorithm.name})
    statistics = [algorithm.ParameterServer(config, space, Discrete(3)).statistics() for space in (VECTOR, IMAGE)]
    assert statistics == [{"return": 1}, {}]
    assert [reward_bound(config.reward_clipping, space) for space in (VECTOR, IMAGE)] == [None, 1.0]


@pytest.mark.parametrize(
    ("name", "keys", "sentence"),
    [
        ("gorila", {"learning_starts": 5_000, "replay_capacity": 1_000}, "learning would never start"),
        ("gorila", {"samples_per_insert": None}, "set learner to separate"),
        ("gorila", {"samples_per_insert": 0}, "samples_per_insert"),
        ("gorila", {"learner": "both"}, "separate"),
        ("gorila", {"epsilon": 0.4}, "epsilon"),
        ("apex", {"learner": "bundled"}, "learner"),
        ("apex", {"n_step": 0}, "n_step"),
        ("apex", {"lstm": True}, "lstm"),
        ("apex", {"update_interval": 5}, "update_interval"),
    ],
)
def test_contradictory_keys_are_refused(name: str, keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        {"gorila": GORILA, "apex": APEX}[name].configure({"path": name} | keys)


def test_separate_learner_may_have_no_sample_limit() -> None:
    GORILA.configure({"path": "gorila", "learner": "separate", "samples_per_insert": None})
