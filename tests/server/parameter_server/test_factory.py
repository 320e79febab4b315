from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaax.algorithm_base import AgentBase, Algorithm, Box, ConfigBase, Discrete, ParameterServerBase, fingerprint
from relaax.server.parameter_server.factory import AlgorithmModels
from relaax.server.parameter_server.model import ModelRefused, ModelSpec
from relaax.tf.optimizers import Adam


class Server(ParameterServerBase):
    def initial_parameters(self, seed: int) -> np.ndarray:
        return np.full(3, seed, np.float32)

    def statistics(self) -> dict[str, int]:
        return {"observations": next(iter(self.observation_space.elements())).shape[0]}


class Nonsense(Server):
    def statistics(self) -> dict[str, int]:
        return {"observations": 40_000}


def spec_of(server: type[ParameterServerBase]) -> ModelSpec:
    config = ConfigBase(path="x", seed=5, optimizer="adam", max_staleness=7, initial_learning_rate=0.5)
    algorithm = Algorithm("x", Path(), ConfigBase, AgentBase, server)
    return AlgorithmModels(algorithm, config)(fingerprint("x", config, Box(shape=(4,)), Discrete(2)))


def test_a_model_is_what_the_algorithm_declares_and_the_configuration_says() -> None:
    spec = spec_of(Server)
    assert spec.initial.tolist() == [5, 5, 5]
    assert spec.optimizer == Adam()
    assert spec.statistics == {"observations": 4}
    assert (spec.max_staleness, spec.schedule.initial) == (7, 0.5)


def test_statistics_that_no_shard_holds_are_refused() -> None:
    with pytest.raises(ModelRefused, match="the statistics have 40000 numbers together, one shard holds up to 32768"):
        spec_of(Nonsense)
