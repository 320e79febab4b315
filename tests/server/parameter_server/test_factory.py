from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import AgentBase, Box, ConfigBase, Discrete, ParameterServerBase
from relaax.checkpoint import Damaged
from relaax.hosting.fingerprint import fingerprint
from relaax.optim.optimizers import Adam
from relaax.server.parameter_server.command.models import AlgorithmModels
from relaax.server.parameter_server.shard.model import ModelRefused, ModelSpec
from relaax.server.parameter_server.shard.shard import DelayCompensation
from support.algorithms import algorithm_of


class Server(ParameterServerBase):
    def initial_parameters(self, seed: int) -> np.ndarray:
        return np.full(3, seed, np.float32)

    def statistics(self) -> dict[str, int]:
        return {"observations": next(iter(self.observation_space.elements())).shape[0]}


class HugeStatistics(Server):
    def statistics(self) -> dict[str, int]:
        return {"observations": 40_000}


def spec_of(server: type[ParameterServerBase], **keys: Any) -> ModelSpec:
    keys = {"seed": 5, "optimizer": "adam", "max_staleness": 7, "initial_learning_rate": 0.5, **keys}
    config = ConfigBase(path="x", **keys)
    algorithm = algorithm_of("x", Path(), ConfigBase, AgentBase, server)
    return AlgorithmModels(algorithm, config)(fingerprint("x", config, Box(shape=(4,)), Discrete(2)))


def test_model_follows_the_algorithm_and_the_configuration() -> None:
    spec = spec_of(Server)
    assert spec.initial.tolist() == [5, 5, 5]
    assert spec.optimizer == Adam()
    assert spec.statistics == {"observations": 4}
    assert (spec.max_staleness, spec.schedule.initial) == (7, 0.5)


@pytest.mark.parametrize(
    ("keys", "compensation", "bound"),
    [
        ({}, None, None),
        ({"combine": "delay_compensated", "delay_compensation": 0.5}, DelayCompensation(0.5, 16), 16),
        ({"combine": "delay_compensated", "max_staleness": 2}, DelayCompensation(0.04, 2), 2),
    ],
)
def test_configuration_selects_how_gradients_are_combined(
    keys: dict[str, Any], compensation: DelayCompensation | None, bound: int | None
) -> None:
    spec = spec_of(Server, **{"max_staleness": None, **keys})
    assert (spec.compensation, spec.max_staleness) == (compensation, bound)


class Broken(Server):
    def initial_parameters(self, seed: int) -> np.ndarray:
        return {}["policy"]


class Column(Server):
    def initial_parameters(self, seed: int) -> np.ndarray:
        return np.zeros((3, 1), np.float32)


def test_error_of_the_algorithm_is_reported_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ModelRefused) as refused:
        spec_of(Broken)
    assert re.fullmatch(
        r"the model cannot be made: \S+: KeyError: 'policy'; the parameter server's log has the traceback",
        str(refused.value),
    )
    assert "Traceback" in caplog.text


def test_parameters_of_a_wrong_shape_are_refused() -> None:
    with pytest.raises(ModelRefused) as refused:
        spec_of(Column)
    line = Column.initial_parameters.__code__.co_firstlineno
    assert str(refused.value).endswith(
        f"test_factory.py, line {line}: initial_parameters() returned an array of shape [3, 1], "
        "but must return a flat vector"
    )


def test_too_many_statistics_are_refused() -> None:
    with pytest.raises(ModelRefused, match="the statistics have 40000 numbers together; the limit is 32768"):
        spec_of(HugeStatistics)


def test_checkpoint_with_other_fixed_keys_is_refused() -> None:
    algorithm = algorithm_of("x", Path(), ConfigBase, AgentBase, Server)
    spaces = Box(shape=(4,)), Discrete(2)
    here = ConfigBase(path="x", optimizer="adam", initial_learning_rate=0.5)
    models = AlgorithmModels(algorithm, here)
    same = fingerprint("x", ConfigBase(path="y", optimizer="adam", seed=3), *spaces)
    assert models.for_checkpoint({"id": "00000007-10", "fingerprint": json.loads(same)}) == fingerprint(
        "x", here, *spaces
    )
    other = fingerprint("x", ConfigBase(path="y"), *spaces)
    sentence = (
        "checkpoint 00000007-10 was made with other values of keys that are fixed when a run is resumed: "
        'algorithm.optimizer is "rms_prop" in the checkpoint, "adam" in the configuration. Use the values that '
        "it was made with, or start a new training"
    )
    with pytest.raises(ModelRefused, match=re.escape(sentence)):
        models.for_checkpoint({"id": "00000007-10", "fingerprint": json.loads(other)})


@pytest.mark.parametrize(
    "manifest", [{}, {"fingerprint": {}}, {"fingerprint": None}, {"fingerprint": {"algorithm": 1}}]
)
def test_checkpoint_without_a_fingerprint_is_damaged(manifest: dict[str, object]) -> None:
    algorithm = algorithm_of("x", Path(), ConfigBase, AgentBase, Server)
    with pytest.raises(Damaged, match="the manifest's fingerprint cannot be read"):
        AlgorithmModels(algorithm, ConfigBase(path="x")).for_checkpoint(manifest)
