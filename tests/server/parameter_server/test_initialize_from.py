"""A training that starts with the parameters of another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete, load_algorithm
from relaax.configuration import ConfigurationError, ParameterServerSection
from relaax.hosting.fingerprint import fingerprint
from relaax.parameters.moments import Moments
from relaax.rlx import Space
from relaax.server.parameter_server.command.initialization import other_training
from relaax.server.parameter_server.command.models import AlgorithmModels
from relaax.server.parameter_server.shard.model import ModelRefused, ModelSpec, ShardPosition, make_model
from support.parameter_servers import parameter_client, registration, running

VECTOR, CHOICE, SIDES = Box(shape=(3,)), Discrete(4), Box(-1, 1, shape=(2,))
SMALL = {"dense": [5]}


def parts(name: str, **keys: Any) -> tuple[Any, Any]:
    algorithm = load_algorithm(name, Path())
    return algorithm, algorithm.configure({"path": name, "network": SMALL, "normalize_observations": True} | keys)


def train(folder: Path, name: str = "da3c", action_space: Space = CHOICE, **keys: Any) -> np.ndarray:
    """Make a checkpoint after one update. Return its parameters."""
    algorithm, config = parts(name, **keys)
    with (
        running(AlgorithmModels(algorithm, config), folder) as server,  # type: ignore[arg-type]
        parameter_client(server.address) as client,
    ):
        client.register(registration(fingerprint=fingerprint(name, config, VECTOR, action_space)))
        size = len(client.pull().parameters)
        client.metrics.statistic("observation", Moments.of(np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])))
        client.push(np.random.default_rng(1).normal(size=size).astype(np.float32), 10)
        return np.array(client.pull().parameters)


def start(folder: Path, name: str = "da3c", action_space: Space = CHOICE, **keys: Any) -> ModelSpec:
    """Return the new model of another training, with the checkpoints in `folder`."""
    algorithm, config = parts(name, **keys)
    other = other_training(ParameterServerSection(initialize_from=str(folder)))
    models = AlgorithmModels(algorithm, config, other)
    return models(fingerprint(name, config, VECTOR, action_space))


def test_parameters_and_statistics_of_inputs_are_taken(tmp_path: Path) -> None:
    wanted = train(tmp_path)
    keys = {"initial_learning_rate": 0.5, "optimizer": "adam", "rewards_gamma": 0.5, "seed": 9}
    spec = start(tmp_path, **keys)
    np.testing.assert_array_equal(spec.initial, wanted)
    assert set(spec.moments) == {"observation"}
    model = make_model(lambda _: spec, '{"a": 1}', ShardPosition())
    counters, parameters, statistics = model.shard.pull()
    np.testing.assert_array_equal(parameters, wanted)
    assert statistics["observation"].mean.tolist() == [2, 2, 2]
    assert (counters.env_steps, counters.version, statistics["return"].count) == (0, 0, 0)


def test_shards_take_their_parts(tmp_path: Path) -> None:
    wanted = train(tmp_path)
    found = []
    for index in range(2):
        model = make_model(lambda _: start(tmp_path), '{"a": 1}', ShardPosition(index, 2))
        found.append(model.shard.pull()[1])
    np.testing.assert_array_equal(np.concatenate(found), wanted)


def test_target_network_starts_equal(tmp_path: Path) -> None:
    wanted = train(tmp_path, "n_step_q")
    model = make_model(lambda _: start(tmp_path, "n_step_q"), '{"a": 1}', ShardPosition())
    assert model.shard.target is not None
    np.testing.assert_array_equal(model.shard.target.vector, wanted)


def test_algorithm_with_the_same_network_may_start_with_it(tmp_path: Path) -> None:
    wanted = train(tmp_path)
    np.testing.assert_array_equal(start(tmp_path, "ppo").initial, wanted)


def test_single_checkpoint_may_be_named(tmp_path: Path) -> None:
    first = train(tmp_path)
    (older,) = [path for path in tmp_path.iterdir() if (path / "manifest.json").is_file()]
    second = train(tmp_path)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(start(tmp_path).initial, second)
    np.testing.assert_array_equal(start(older).initial, first)


@pytest.mark.parametrize(
    ("name", "action_space", "keys", "difference"),
    [
        ("da3c", CHOICE, {"network": {"dense": [6]}}, r"its array \S+ is \[3, 5\], that of the new model is \[3, 6\]"),
        ("da3c", CHOICE, {"lstm": True}, r"its array \S+ is missing, that of the new model is"),
        ("da3c", Discrete(5), {}, r"its action space is Discrete\(4\), not Discrete\(5\)"),
        ("n_step_q", CHOICE, {}, r"its array \S+ is missing|its array \S+ is \[5, 4\]"),
    ],
)
def test_other_network_is_refused_with_the_difference(
    tmp_path: Path, name: str, action_space: Space, keys: dict[str, Any], difference: str
) -> None:
    train(tmp_path)
    with pytest.raises(ModelRefused, match=rf"initialize-from: .* does not fit the new model: {difference}"):
        start(tmp_path, name, action_space, **keys)


@pytest.mark.parametrize("name", ["sac", "apex_dpg"])
def test_several_networks_are_taken_and_compared(tmp_path: Path, name: str) -> None:
    wanted = train(tmp_path, name, SIDES)
    np.testing.assert_array_equal(start(tmp_path, name, SIDES).initial, wanted)
    with pytest.raises(ModelRefused, match=r"its array \S+ is .*, that of the new model is"):
        start(tmp_path, name, SIDES, network={"dense": [7]})


def test_location_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="initialize-from: .* there is no usable checkpoint"):
        start(tmp_path)
