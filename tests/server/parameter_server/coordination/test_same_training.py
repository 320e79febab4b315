"""Training gives the same result with any number of shards."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
import pytest

from relaax.optim.optimizers import AdaGrad, Adam, Add, Momentum, OptimizerSpec, RMSProp
from support.parameter_servers import Models, fingerprint, gradient, parameter_client, registration
from support.shards import sharded

SIZE, PUSHES = 1_003, 10
OPTIMIZERS = [RMSProp(0.9, 0.01), Adam(), Momentum(), AdaGrad(), Add()]


def trained_parameters(count: int, optimizer: OptimizerSpec) -> npt.NDArray[np.float32]:
    random = np.random.default_rng(7)
    models = Models(optimizer, learning_rate=0.1, end=500)
    with sharded(count, models) as shards, parameter_client(shards.addresses) as client:
        client.register(registration(fingerprint=fingerprint(size=SIZE)))
        client.pull()
        for _ in range(PUSHES):
            pulled = client.push(random.standard_normal(SIZE).astype(np.float32), env_steps=5).pulled
        assert pulled is not None
        return pulled.parameters


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_number_of_shards_does_not_change_the_parameters(optimizer: OptimizerSpec) -> None:
    one = trained_parameters(1, optimizer)
    assert np.abs(one).max() > 0.01
    for count in (2, 4):
        np.testing.assert_allclose(trained_parameters(count, optimizer), one, rtol=1e-6, atol=1e-6)


def test_all_parts_of_a_push_are_sent_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    with sharded(4) as shards, parameter_client(shards.addresses) as client:
        client.register(registration())
        client.pull()
        barrier = threading.Barrier(4)
        for shard in shards.all:
            model = shard.core.model
            assert model is not None
            push, pull = model.shard.push, model.shard.pull

            # No shard answers before all shards have received the request.
            def wait_and_push(part, push=push):  # type: ignore[no-untyped-def]
                barrier.wait(30)
                return push(part)

            def wait_and_pull(pull=pull):  # type: ignore[no-untyped-def]
                barrier.wait(30)
                return pull()

            monkeypatch.setattr(model.shard, "push", wait_and_push)
            monkeypatch.setattr(model.shard, "pull", wait_and_pull)
        assert client.push(gradient(1), env_steps=1).version == 1
        assert client.pull().version == 1
