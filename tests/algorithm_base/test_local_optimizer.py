from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import ConfigBase
from relaax.algorithm_base.config import Schedule
from relaax.algorithm_base.testing import FakeParameters
from relaax.hosting.gradient_filters import WARM_UP, FilteredParameters, LocalOptimizer, LossOutliers, agent_parameters
from relaax.optim.optimizers import Add, FlatVariable, Momentum, OptimizerSpec, RMSProp
from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import FlatVector, Registration
from support.parameter_servers import Models, fingerprint, running


class AddingParameters(FakeParameters):
    """A fake parameter server that adds each update to its parameters."""

    def apply(self, gradient: FlatVector) -> FlatVector:
        updated: FlatVector = self.parameters + gradient
        return updated


class LenientParameters(AddingParameters):
    """A fake that records updates that are not finite, but does not apply them."""

    def _check(self, gradient: FlatVector) -> None:
        pass

    def apply(self, gradient: FlatVector) -> FlatVector:
        return super().apply(gradient) if np.isfinite(gradient).all() else self.parameters


def local(parameters_client: FakeParameters, optimizer: OptimizerSpec, schedule: Schedule) -> FilteredParameters:
    wrapped = FilteredParameters(parameters_client, [LocalOptimizer(optimizer, schedule)])
    parameters_client.register(Registration("x"))
    wrapped.pull()
    return wrapped


def vector(*values: float) -> FlatVector:
    return np.array(values, np.float32)


def test_worker_sends_updates_at_the_last_seen_learning_rate() -> None:
    # m = 0.5 * 4 = 2 at rate 1. Then m = 0.5 * 2 + 0.5 * 0 = 1 at rate 0.5, because 50 of 100 steps are done.
    parameters_client = AddingParameters(vector(10.0))
    wrapped = local(parameters_client, Momentum(momentum=0.5), Schedule(1.0, 100))
    assert wrapped.push(vector(4.0), 50).global_step == 50
    wrapped.push(vector(0.0), 0)
    assert [push.gradient.tolist() for push in parameters_client.pushes if push.gradient is not None] == [
        [-2.0],
        [-0.5],
    ]
    assert parameters_client.parameters.tolist() == [7.5]


def test_worker_rmsprop_divides_by_its_own_statistics() -> None:
    parameters_client = AddingParameters(vector(0.0, 0.0))
    wrapped = local(parameters_client, RMSProp(decay=0.9, epsilon=0.1), Schedule(0.5))
    wrapped.push(vector(3.0, -4.0), 1)
    np.testing.assert_allclose(parameters_client.parameters, [-0.5 * 3, 0.5 * 4 / np.sqrt(1.7)], rtol=1e-6)


@pytest.mark.parametrize("spec", [RMSProp(), RMSProp(centered=True), Momentum()])
def test_single_worker_learns_as_with_shared_statistics(spec: OptimizerSpec) -> None:
    random = np.random.default_rng(0)
    parameters_client = AddingParameters(np.zeros(50, np.float32))
    wrapped = local(parameters_client, spec, Schedule(0.1))
    parameters, shared = FlatVariable.zeros(50), spec.create(50)
    sent = []
    for _ in range(5):
        gradient = random.standard_normal(50).astype(np.float32)
        before = gradient.copy()
        wrapped.push(gradient, 1)
        shared.apply(parameters, gradient, 0.1)
        sent.append(parameters_client.pushes[-1].gradient)
        np.testing.assert_array_equal(gradient, before)
    np.testing.assert_allclose(parameters_client.parameters, parameters.snapshot(), rtol=1e-5, atol=1e-7)
    assert len({update.tobytes() for update in sent if update is not None}) == 5


def test_two_workers_have_separate_statistics() -> None:
    first, second = (AddingParameters(vector(0.0)) for _ in range(2))
    one, two = (
        local(parameters_client, Momentum(momentum=0.5), Schedule(1.0)) for parameters_client in (first, second)
    )
    one.push(vector(8.0), 1)
    two.push(vector(2.0), 1)
    assert (first.parameters.tolist(), second.parameters.tolist()) == ([-4.0], [-1.0])


def test_rollback_resets_optimizer_statistics() -> None:
    parameters_client = AddingParameters(vector(0.0))
    wrapped = local(parameters_client, Momentum(momentum=0.5), Schedule(1.0))
    wrapped.push(vector(8.0), 1)
    parameters_client.discard.append("incarnation")
    assert wrapped.push(vector(8.0), 1).discarded == "incarnation"
    wrapped.push(vector(2.0), 1)
    assert parameters_client.parameters.tolist() == [-1.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_gradient_that_is_not_finite_leaves_optimizer_unchanged(bad: float) -> None:
    parameters_client = LenientParameters(vector(0.0, 0.0))
    wrapped = local(parameters_client, Momentum(momentum=0.5), Schedule(1.0))
    wrapped.push(vector(1.0, bad), 1)
    sent = parameters_client.pushes[-1].gradient
    assert sent is not None
    np.testing.assert_array_equal(sent, vector(1.0, bad))
    parameters_client.publish(vector(0.0, 0.0))
    wrapped.pull()
    wrapped.push(vector(8.0, 2.0), 1)
    assert parameters_client.parameters.tolist() == [-4.0, -1.0]


def test_push_without_gradient_passes_unchanged() -> None:
    parameters_client = AddingParameters(vector(0.0))
    wrapped = local(parameters_client, Momentum(), Schedule(1.0))
    pushed = wrapped.push(None, 7, want_parameters=False)
    assert (pushed.pulled, parameters_client.global_step, parameters_client.pushes[-1].gradient) == (None, 7, None)
    assert wrapped.gradient_memory() is parameters_client.gradient_memory()


def test_filters_follow_the_configuration() -> None:
    def filters(**keys: Any) -> list[type]:
        parameters = agent_parameters(FakeParameters(vector(0.0)), ConfigBase(path="x", **keys))
        assert isinstance(parameters, FilteredParameters)
        return [type(each) for each in parameters._filters]

    assert filters() == []
    assert filters(optimizer="worker_rms_prop") == [LocalOptimizer]
    both = filters(optimizer="worker_momentum", loss_outlier_deviations=3)
    assert both == [LossOutliers, LocalOptimizer]


def test_outliers_skip_optimizer_statistics_but_are_counted() -> None:
    config = ConfigBase(path="x", optimizer="worker_momentum", loss_outlier_deviations=3, anneal_learning_rate=False)
    with running(Models(optimizer=Add())) as server:
        client = ParameterClient(server.address)
        parameters_client = agent_parameters(client, config)
        try:
            size = client.register(Registration(fingerprint())).parameters
            parameters_client.pull()
            gradient = np.ones(size, np.float32)
            for _ in range(WARM_UP):
                parameters_client.push(np.zeros(size, np.float32), 1, loss=1.0)
            assert parameters_client.push(gradient * 1e6, 1, loss=9.0).discarded == "loss"
            assert parameters_client.push(gradient * np.nan, 1, loss=1.0).discarded == "not_finite"
            pulled = parameters_client.push(gradient, 1, loss=1.0).pulled
            counters = server.core.model.shard.counters
        finally:
            client.close()
    assert pulled is not None
    np.testing.assert_allclose(pulled.parameters, np.full(size, -config.initial_learning_rate * 0.1), rtol=1e-5)
    assert (counters.env_steps, counters.version) == (WARM_UP + 3, WARM_UP + 1)
    assert counters.discarded_for == {"stale": 0, "not_finite": 1, "loss": 1}
