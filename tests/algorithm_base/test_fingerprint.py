from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Dict, Discrete, Space, load_algorithm
from relaax.hosting.fingerprint import fingerprint, first_difference, parse_fingerprint

DA3C = load_algorithm("da3c", Path())
VECTOR = Box(-1, 1, shape=(4,))


def make(observation_space: Space = VECTOR, action_space: Space = Discrete(2), **keys: Any) -> str:  # noqa: B008
    return fingerprint("da3c", DA3C.configure({"path": "da3c"} | keys), observation_space, action_space)


def test_equal_configurations_have_equal_fingerprints() -> None:
    assert make(max_global_step=1e6, RMSProp={"decay": 0.9, "epsilon": 1}) == make(
        RMSProp={"epsilon": 1.0, "decay": 0.9}, max_global_step=1_000_000
    )
    assert make(Box(np.full(4, -1.0), np.full(4, 1.0))) == make(VECTOR)


def test_only_bounds_of_actions_change_the_fingerprint() -> None:
    assert make(Box(shape=(4,))) == make(VECTOR)
    assert make(Dict({"low": Box(-1, 1, shape=(2,)), "y": Discrete(3)})) == make(
        Dict({"low": Box(shape=(2,)), "y": Discrete(3)})
    )
    assert first_difference(make(action_space=Box(-2, 1, shape=(4,))), make(action_space=VECTOR)) is not None


def test_path_and_seed_do_not_change_the_fingerprint() -> None:
    assert make(path="../elsewhere/da3c", seed=7) == make()


def test_fingerprint_is_canonical_json() -> None:
    text = make()
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


def test_parsed_fingerprint_has_the_original_values() -> None:
    spaces = (Dict({"x": Box(shape=(4,)), "y": Discrete(3, start=2)}), Discrete(5))
    description, observation_space, action_space = parse_fingerprint(make(*spaces, entropy_beta=0.5))
    assert (observation_space, action_space) == spaces
    assert description["algorithm"] == "da3c"
    assert description["configuration"]["entropy_beta"] == 0.5
    assert "path" not in description["configuration"]


@pytest.mark.parametrize(
    "text", ["", "{", "null", "3", "[]", "{}", '"x"', '{"observation_space": {}, "action_space": {}}', "[" * 5000]
)
def test_invalid_fingerprint_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_fingerprint(text)


@pytest.mark.parametrize(
    ("theirs", "difference"),
    [
        ({"rewards_gamma": 0.9}, "configuration.rewards_gamma: 0.9 at the worker, 0.99 at the parameter server"),
        ({"RMSProp": {"decay": 0.5}}, "configuration.RMSProp.decay: 0.5 at the worker, 0.99 at the parameter server"),
        ({"network": {"dense": [8]}}, "configuration.network.dense: [8] at the worker, None at the parameter server"),
        (
            {"network": {"dense": [8]}, "entropy_beta": 0.0},
            "configuration.entropy_beta: 0.0 at the worker, 0.01 at the parameter server",
        ),
    ],
)
def test_first_difference_names_the_key_and_both_values(theirs: dict[str, Any], difference: str) -> None:
    assert first_difference(make(**theirs), make()) == difference


def test_different_spaces_are_reported() -> None:
    found = first_difference(make(action_space=Discrete(3)), make())
    assert found == "action_space: Discrete(3) at the worker, Discrete(2) at the parameter server"
    found = first_difference(make(Discrete(4)), make())
    assert found is not None
    assert found.startswith("observation_space: Discrete(4) at the worker, Box(float32, ")
    assert first_difference(make(), make()) is None


def test_different_algorithm_is_reported() -> None:
    ours = make()
    assert first_difference(ours.replace('"algorithm":"da3c"', '"algorithm":"dqn"'), ours) == (
        "algorithm: 'dqn' at the worker, 'da3c' at the parameter server"
    )
