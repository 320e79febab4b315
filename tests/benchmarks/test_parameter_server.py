"""Benchmarks of a push: the update, and its serialization. The Atari network has 677,747 parameters."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from relaax.algorithm_base.config import Schedule
from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.optim import host_optimizers
from relaax.optim.optimizers import Adam, FlatVariable, OptimizerSpec, RMSProp
from relaax.optim.vector import HostVector
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.wire import PULL_RESPONSE, PUSH_REQUEST, float32_of
from relaax.server.parameter_server.shard.shard import Push, Shard
from relaax.server.parameter_server.shard.state import Discard, Ledger, Outcome
from relaax.transport.long_messages import Carrier

PARAMETERS = 677_747


def vector() -> np.ndarray:
    return np.random.default_rng(0).normal(scale=1e-3, size=PARAMETERS).astype(np.float32)


@pytest.mark.parametrize("spec", [RMSProp(), Adam()], ids=["rms_prop", "adam"])
@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
def test_apply(benchmark: BenchmarkFixture, spec: OptimizerSpec, on_device: bool) -> None:
    parameters = FlatVariable(vector()) if on_device else HostVector(vector())
    optimizer = spec.create(PARAMETERS) if on_device else host_optimizers.create(spec, PARAMETERS)
    benchmark(optimizer.apply, parameters, vector(), 1e-4)
    assert np.isfinite(parameters.snapshot()).all()


def test_push_into_a_shard(benchmark: BenchmarkFixture) -> None:
    """Measure checks, ledger, optimizer, and the copy of the parameters for the answer."""
    shard = Shard(vector(), RMSProp(), Schedule(1e-4, None))
    gradient, numbers = vector(), itertools.count(1)

    def push() -> int:
        version = shard.counters.version
        return shard.push(Push("worker", next(numbers), version, gradient, 160, 640, 0)).counters.version

    assert benchmark(push) >= 1


def test_write_a_push(benchmark: BenchmarkFixture) -> None:
    gradient, message = vector(), pb.PushRequest(worker_id="0" * 32, push_id=7, want_parameters=True)
    written = benchmark(lambda: PUSH_REQUEST.write(Carrier(message, gradient)))
    assert len(written) > 4 * PARAMETERS


def test_read_a_push(benchmark: BenchmarkFixture) -> None:
    written = PUSH_REQUEST.write(Carrier(pb.PushRequest(worker_id="0" * 32, push_id=7), vector()))
    gradient = benchmark(lambda: float32_of(PUSH_REQUEST.read(written).data))
    assert gradient.shape == (PARAMETERS,)


def test_read_the_parameters(benchmark: BenchmarkFixture) -> None:
    written = PULL_RESPONSE.write(Carrier(pb.PullResponse(version=7), vector()))
    parameters = benchmark(lambda: float32_of(PULL_RESPONSE.read(written).data))
    assert parameters.shape == (PARAMETERS,)


def test_read_a_push_of_another_writer(benchmark: BenchmarkFixture) -> None:
    """Read a push written by Protobuf. Its gradient is between other fields, so it must be parsed and copied."""
    written = pb.PushRequest(worker_id="0" * 32, push_id=7, gradient=vector().tobytes(), env_steps=1)
    data = written.SerializeToString()
    gradient = benchmark(lambda: float32_of(PUSH_REQUEST.read(data).data))
    assert gradient.shape == (PARAMETERS,)


def test_snapshot_of_a_shard(benchmark: BenchmarkFixture) -> None:
    """Measure the copy that a checkpoint writes. Pushes wait only for its last part."""
    shard = Shard(vector(), RMSProp(), Schedule(1e-4, None))
    assert benchmark(shard.snapshot).parameters.shape == (PARAMETERS,)


def test_ledger(benchmark: BenchmarkFixture) -> None:
    """Look up and record one push, in a ledger of a thousand workers."""
    ledger, numbers = Ledger(), itertools.count(1)
    applied = Outcome(Discard.NONE, 1)
    for worker in range(1000):
        ledger.record(f"worker-{worker}", 1, applied)

    def count() -> None:
        number = next(numbers)
        assert ledger.recorded_outcome("mine", number) is None
        ledger.record("mine", number, applied)

    benchmark(count)
    assert len(ledger) == 1001


def test_write_a_checkpoint(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Write parameters and one slot, read them back, publish them, and delete the oldest checkpoint."""
    manager = CheckpointManager(LocalStore(tmp_path), keep=2, keep_best=0)
    parts = {"shard-0": {"parameters": vector(), "slots/mean_square": vector()}}
    steps = itertools.count(1)
    benchmark(lambda: manager.save(next(steps), parts, {"mean_return": None}))
    assert 1 <= len(manager.published()) <= 2
