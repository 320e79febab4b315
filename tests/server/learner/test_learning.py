"""The learner's loop, with a replay memory and parameters in this process."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import LearnerContext
from relaax.algorithm_base.testing import FakeParameters
from relaax.parameters.interfaces import LEARN, Registration, TrainingEnded
from relaax.replay.interfaces import Insertion, ReplayTraffic, ReplayUnavailable, Sampled
from relaax.replay.local import LocalReplay
from relaax.replay.spec import Field, TableDeclaration, TableSpec
from relaax.rlx import Box, Discrete
from relaax.server.learner import learning
from relaax.server.learner.learning import (
    MAX_PREFETCHED,
    Interruption,
    LearnerMeter,
    LearnerState,
    SamplePrefetcher,
    learn,
)
from support.metrics_page import documented
from support.processes import wait_until
from support.replay_algorithm import SIZE, Config, Learner

SPACES = Box(-1, 1, shape=(3,)), Discrete(2)
FIELDS = {"observation": Field("float32", (3,)), "reward": Field("float32")}
SPEC = TableSpec("experience", FIELDS, 1000, sampler="prioritized")


def memory(min_size: int = 8) -> LocalReplay:
    return LocalReplay(TableDeclaration(SPEC, min_size=min_size), environments=1)


def fill(replay: LocalReplay, count: int) -> None:
    columns = {"observation": np.zeros((count, 3), np.float32), "reward": np.zeros(count, np.float32)}
    replay.writers[0].insert(Insertion(columns))


class CountingReplay(LocalReplay):
    """A replay memory that counts its calls."""

    samples = 0
    given_back = 0

    def sample(self, count: int, timeout: float) -> Sampled | None:
        found = super().sample(count, timeout)
        self.samples += found is not None
        return found

    def update_priorities(self, sampled: Sampled, priorities: Any) -> None:
        super().update_priorities(sampled, priorities)
        self.given_back += 1


class BusyReplay(CountingReplay):
    """A replay memory into which an actor inserts continuously."""

    @property
    def dropped_updates(self) -> int:
        return self.given_back

    def update_priorities(self, sampled: Sampled, priorities: Any) -> None:
        super().update_priorities(sampled, priorities)
        fill(self, 1)


def learner_of(replay: LocalReplay, parameters: FakeParameters) -> Learner:
    parameters.register(Registration("", environments=0, purpose=LEARN))
    given: dict[str, Any] = {"parameters": parameters, "metrics": parameters.metrics, "replay": replay}
    return Learner(Config(path="x", batch=4), LearnerContext(*SPACES, seed=1, learner=0, **given))


class EndsAfter(FakeParameters):
    """Parameters with which training ends after `pushes` pushes."""

    def __init__(self, pushes: int) -> None:
        super().__init__(np.zeros(SIZE, np.float32))
        self._left = pushes

    def push(self, *arguments: Any, **options: Any) -> Any:
        if self._left == 0:
            raise TrainingEnded(7)
        self._left -= 1
        return super().push(*arguments, **options)


def test_learner_learns_from_batches_until_training_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "METRICS_SECONDS", 0.0)
    replay = BusyReplay(TableDeclaration(SPEC, min_size=8), environments=1)
    fill(replay, 10)
    parameters = EndsAfter(5)
    learner, state = learner_of(replay, parameters), LearnerState(0)
    samples = SamplePrefetcher(replay, learner.batch_size)
    try:
        with pytest.raises(TrainingEnded):
            learn(learner, samples, parameters, state, Interruption())
    finally:
        samples.close()
    assert [push.env_steps for push in parameters.pushes] == [0] * 5
    assert (state.updates, state.items) == (5, 20)
    assert state.replay_size in range(10, 16)
    assert replay.given_back == 5
    assert state.dropped_priorities == 5
    assert replay.samples <= 5 + MAX_PREFETCHED + 2, "prefetching is bounded"
    told = {name for name, _ in parameters.scalars}
    by_the_algorithm = {"replay/left_out", "replay/masked"}
    assert told == {name for name in documented() if name.startswith(("learner/", "replay/"))} - by_the_algorithm
    assert min(value for name, value in parameters.scalars if name == "replay/inserts_per_second") >= 0


def test_learner_without_samples_polls_the_parameter_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learning, "IDLE_SECONDS", 0.01)
    replay = memory()
    parameters = FakeParameters(np.zeros(SIZE, np.float32))
    learner = learner_of(replay, parameters)
    flushed = threading.Event()

    def flush() -> None:
        if flushed.is_set():
            raise TrainingEnded(3)
        flushed.set()

    monkeypatch.setattr(parameters, "flush", flush)
    samples = SamplePrefetcher(replay, 4)
    try:
        with pytest.raises(TrainingEnded):
            learn(learner, samples, parameters, LearnerState(0), Interruption())
    finally:
        samples.close()
    assert parameters.pushes == []


def test_sampling_error_is_raised_after_ready_batches() -> None:
    class Gone(LocalReplay):
        def sample(self, count: int, timeout: float) -> Sampled | None:
            raise ReplayUnavailable("no replay server was there for 60 s")

    replay = Gone(TableDeclaration(SPEC), environments=1)
    samples = SamplePrefetcher(replay, 4)
    try:
        with pytest.raises(ReplayUnavailable, match="no replay server"):
            samples.next_batch(30.0)
    finally:
        samples.close()


def test_prefetching_is_bounded_and_can_be_closed() -> None:
    replay = CountingReplay(TableDeclaration(SPEC, min_size=1), environments=1)
    fill(replay, 4)
    samples = SamplePrefetcher(replay, 4)
    wait_until(lambda: replay.samples == MAX_PREFETCHED + 1, "two batches are ready, and one waits")
    assert samples.next_batch(30.0) is not None
    wait_until(lambda: replay.samples == MAX_PREFETCHED + 2, "one more batch is sampled")
    samples.close()
    assert not samples._thread.is_alive()


def test_meter_records_rates_once_a_second() -> None:
    now = [100.0]
    state = LearnerState(0)
    parameters = FakeParameters(np.zeros(SIZE, np.float32))
    parameters.register(Registration("", environments=0, purpose=LEARN))
    replay = memory(min_size=1)
    fill(replay, 4)
    sampled = replay.sample(2, 0.0)
    assert sampled is not None
    traffic = ReplayTraffic(100, 10)
    meter = LearnerMeter(state, parameters.metrics, lambda: traffic, lambda: now[0])
    for _ in range(4):
        meter.add_wait(0.25)
        meter.add_update(sampled)
        now[0] += 0.5
        traffic += ReplayTraffic(10, 20)
    rates = [pair for pair in parameters.scalars if pair[0] not in ("replay/size", "replay/sample_age")]
    assert rates == [
        ("learner/updates_per_second", 2.0),
        ("learner/wait_fraction", 0.75),
        ("replay/inserts_per_second", 20.0),
        ("replay/samples_per_second", 40.0),
        ("replay/samples_per_insert", 2.0),
    ]
    assert (state.updates, state.waited_seconds) == (4, 1.0)


def test_no_ratio_is_recorded_without_inserts() -> None:
    now = [0.0]
    parameters = FakeParameters(np.zeros(SIZE, np.float32))
    parameters.register(Registration("", environments=0, purpose=LEARN))
    meter = LearnerMeter(LearnerState(0), parameters.metrics, ReplayTraffic, lambda: now[0])
    now[0] = 2.0
    meter.add_wait(2.0)
    assert dict(parameters.scalars) == {
        "learner/updates_per_second": 0.0,
        "learner/wait_fraction": 1.0,
        "replay/inserts_per_second": 0.0,
        "replay/samples_per_second": 0.0,
    }
