"""Learning rates by range of the vector, through real shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import AgentBase, Box, ConfigBase, Discrete, ParameterServerBase
from relaax.algorithm_base.testing import FakeParameters
from relaax.hosting.fingerprint import fingerprint
from relaax.optim.learning_rates import factor_vector
from relaax.optim.optimizers import Adam, OptimizerSpec, RMSProp
from relaax.parameters.client import Transport
from relaax.parameters.interfaces import FlatVector, ParameterServerUnusable
from relaax.server.parameter_server.command.models import AlgorithmModels
from relaax.server.parameter_server.shard.model import ModelRefused
from support.algorithms import algorithm_of
from support.parameter_servers import SIZE, Models, parameter_client, registration
from support.shards import sharded

pytestmark = pytest.mark.checks("relaax/server", "relaax/optim")

FACTORS = ((2, 1.0), (1, 0.0), (4, 2.5), (1, 0.5))  # three shards cut the second and the third range
ROUNDING = 1e-6


def models(optimizer: OptimizerSpec, factors: Any = FACTORS) -> Models:
    return Models(optimizer, learning_rate=0.1, rate_factors=factors)


def trained(count: int, tested: Models, transport: Transport = "grpc", directory: Path | None = None) -> FlatVector:
    """Push five gradients and return the parameters. With a checkpoint, training continues from it."""
    random = np.random.default_rng(0)
    with sharded(count, tested, directory) as shards, parameter_client(shards.addresses, transport=transport) as worker:
        worker.register(registration())
        worker.pull()
        for _ in range(5):
            worker.push(random.standard_normal(SIZE).astype(np.float32), env_steps=1)
        return worker.pull().parameters.copy()


@pytest.mark.parametrize("optimizer", [Adam(), RMSProp()])
@pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
def test_factors_do_not_depend_on_the_shards(optimizer: OptimizerSpec, transport: Transport) -> None:
    plain = trained(1, models(optimizer, ()))
    one, three = (trained(count, models(optimizer), transport) for count in (1, 3))
    np.testing.assert_array_equal(one, three)
    np.testing.assert_allclose(one, plain * factor_vector(FACTORS), rtol=1e-5, atol=ROUNDING)
    assert one[2] == 0


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (3, 3)])
def test_factors_apply_after_a_restored_checkpoint(before: int, after: int, tmp_path: Path) -> None:
    whole = trained(1, models(Adam()), directory=tmp_path / "first")
    again = trained(1, models(Adam()), directory=tmp_path / "first")
    assert not np.array_equal(whole, again)
    np.testing.assert_array_equal(trained(before, models(Adam()), directory=tmp_path / "second"), whole)
    np.testing.assert_array_equal(trained(after, models(Adam()), directory=tmp_path / "second"), again)


def test_hogwild_refuses_several_learning_rates() -> None:
    with (
        sharded(1, models(RMSProp())) as shards,
        parameter_client(shards.addresses, transport="hogwild") as worker,
        pytest.raises(ParameterServerUnusable, match="its parts have different learning rates .* set bridge to auto"),
    ):
        worker.register(registration())


class Declared(ParameterServerBase):
    def initial_parameters(self, seed: int) -> FlatVector:
        return np.zeros(3, np.float32)

    def learning_rates(self) -> Any:
        return self.config.model_extra["rates"]


class Config(ConfigBase, extra="allow"):
    pass


def test_algorithm_declares_learning_rates() -> None:
    def factors(rates: Any) -> Any:
        config = Config.model_validate({"path": "x", "rates": rates})
        algorithm = algorithm_of("x", Path(), Config, AgentBase, Declared)
        return AlgorithmModels(algorithm, config)(fingerprint("x", config, Box(shape=(4,)), Discrete(2))).rate_factors

    assert factors([(1, 2.0), (2, 0.0)]) == ((1, 2.0), (2, 0.0))
    assert factors([(3, 1.0)]) == ()
    with pytest.raises(ModelRefused, match=r"learning_rates covers 2 numbers, but there are 3 parameters"):
        factors([(2, 0.5)])
    with pytest.raises(ModelRefused, match="learning_rates"):
        factors(5)


def test_fake_parameters_scale_the_steps() -> None:
    fake = FakeParameters(np.ones(3, np.float32), learning_rate=0.5, learning_rates=[(1, 0.0), (2, 3.0)])
    np.testing.assert_array_equal(fake.apply(np.float32([2, 2, 4])), [1, -2, -5])
    with pytest.raises(ValueError, match="covers 1 numbers"):
        FakeParameters(np.ones(3, np.float32), learning_rates=[(1, 0.5)])
