"""Tests of the metrics that a worker measures."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.metrics.system import Sampler
from relaax.rlx import Actions, EpisodeReturns, Init, Ping, Pong, Reset, Step
from relaax.server.rlx_server.workers.session import WorkerMetrics
from support.offline_client import OfflineMetrics

INIT, STEP, RESET = Init([np.zeros((1, 1))]), Step(np.zeros(1), [np.zeros((1, 1))]), Reset(np.zeros(1))
ACTIONS, RETURNS = Actions([np.zeros(1)]), EpisodeReturns(np.zeros(1))


class Recorded(OfflineMetrics):
    """Metrics that record gauges too."""

    def __init__(self) -> None:
        super().__init__()
        self.gauges: dict[str, float] = {}

    def gauge(self, name: str, value: float) -> None:
        self.gauges[name] = value


def test_answers_to_steps_give_act_and_turnaround_times() -> None:
    metrics = Recorded()
    measures = WorkerMetrics(metrics, Sampler())
    measures.record_answer(INIT, ACTIONS, 1.0, 1.5)  # the first answer of an episode answers no step
    measures.record_answer(STEP, ACTIONS, 2.0, 2.01)
    measures.record_answer(Ping(1), Pong(1), 2.015, 2.016)  # a ping may come between two steps
    measures.record_answer(STEP, ACTIONS, 2.03, 2.05)
    measures.record_answer(STEP, ACTIONS, 2.5, 2.6, void=True)  # the agent did not get this step
    measures.record_answer(RESET, RETURNS, 3.0, 3.1)
    measures.record_answer(INIT, ACTIONS, 9.0, 9.1)
    measures.record_answer(STEP, ACTIONS, 9.2, 9.3)
    measures.report()
    values = {name: [value for other, value in metrics.scalars if other == name] for name, _ in metrics.scalars}
    assert values["latency/act_ms"] == pytest.approx([10.0, 20.0, 100.0])
    assert values["latency/turnaround_ms"] == pytest.approx([500.0, 20.0, 100.0])


def test_gauges_are_reported_with_the_next_step() -> None:
    metrics, sampler = Recorded(), Sampler()
    measures = WorkerMetrics(metrics, sampler)
    measures.record_answer(STEP, ACTIONS, 1.0, 1.1)
    assert metrics.gauges == {}
    sampler.beat()
    measures.record_answer(INIT, ACTIONS, 2.0, 2.1)
    assert metrics.gauges == {}
    measures.record_answer(STEP, ACTIONS, 3.0, 3.1)
    measures.report()  # all steps are already reported
    assert {"worker/memory_mb", "server/memory_mb", "machine/available_memory_mb"} <= metrics.gauges.keys()


def test_latencies_are_reported_at_intervals_and_at_the_end() -> None:
    metrics = Recorded()
    measures = WorkerMetrics(metrics, Sampler())
    for start in (10.0, 10.1, 10.2):  # the first step is reported at once
        measures.record_answer(STEP, ACTIONS, start, start + 0.01)
    assert len(metrics.scalars) == 1
    measures.record_answer(STEP, ACTIONS, 10.6, 10.61)
    assert len(metrics.scalars) == 1 + 3 + 3
    measures.record_answer(STEP, ACTIONS, 10.7, 10.71)
    measures.report()
    measures.report()
    assert len(metrics.scalars) == 1 + 3 + 3 + 2
