"""Learning from valid items and environments while one client sends extreme numbers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import AgentContext, Box, Discrete, StepResult, load_algorithm
from relaax.algorithm_base import transitions as learnable
from relaax.algorithm_base.testing import FakeParameters
from relaax.algorithm_base.transitions import ObservationLayout, WriterTransitions, batch_outliers, within_limits
from relaax.metrics.rate_limited_log import RateLimitedLog
from relaax.parameters.interfaces import Registration
from relaax.replay.interfaces import Insertion, ReplayWriter

LARGEST = np.float32(3.4e38)
NOTHING = np.zeros(2, np.bool_)


@pytest.mark.parametrize("extreme", [1e5, LARGEST, -LARGEST, np.inf, np.nan])
def test_item_far_from_the_others_is_an_outlier(extreme: float) -> None:
    inputs = np.array([[1, 2], [3, 0], [0, extreme], [5, 1]], np.float32)
    assert batch_outliers(np.zeros(4, np.float32), inputs).tolist() == [False, False, True, False]  # type: ignore[union-attr]


@pytest.mark.parametrize("extreme", [1e15, np.inf, np.nan])
def test_target_far_from_the_others_is_an_outlier(extreme: float) -> None:
    targets = np.array([extreme, 500, 0, 0], np.float32)
    assert batch_outliers(targets).tolist() == [True, False, False, False]  # type: ignore[union-attr]


def test_similar_items_and_rare_rewards_are_not_outliers() -> None:
    rng = np.random.default_rng(1)
    sparse = np.append(np.zeros(31), 1e5).astype(np.float32)
    assert batch_outliers(sparse, 1e5 * rng.normal(size=(32, 4))) is None


def test_values_within_limits_are_accepted() -> None:
    observations = np.array([[1.0], [1e6], [2e6], [np.nan]])
    assert within_limits(np.zeros(4), observations).tolist() == [True, True, False, False]
    assert within_limits(np.array([1e6, -1e7, np.nan])).tolist() == [True, False, False]


class Writer(ReplayWriter):
    """A writer that keeps its insertions."""

    def __init__(self) -> None:
        self.inserted: list[Insertion] = []

    @property
    def environments(self) -> Any:
        return np.arange(2)

    def insert(self, insertion: Insertion) -> None:
        self.inserted.append(insertion)


@pytest.mark.parametrize("images", [False, True])
def test_transitions_beyond_limits_are_dropped_and_logged(
    images: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learnable, "_rate_limited_log", RateLimitedLog(logging.getLogger("of this test")))
    space = Box(0, 255, (4, 4), "uint8") if images else Box(-LARGEST, LARGEST, (3,))
    layout = ObservationLayout(space, 1)
    writer, parameters = Writer(), FakeParameters(np.zeros(1, np.float32))
    parameters.register(Registration("", environments=2))
    metrics = parameters.metrics
    transitions = WriterTransitions(
        writer, layout, steps=1, gamma=0.9, insert_size=10, bounded=False, client="client mallory", metrics=metrics
    )
    inputs = np.ones((2, *layout.inputs), layout.dtype)
    rewards = np.array([1.0, 1e15 if images else 1.0])
    if not images:
        inputs[1] = LARGEST
    for _ in range(200):
        transitions.act(inputs, NOTHING, np.zeros(2, np.int64))
        transitions.insert()
        step = StepResult(rewards, [inputs], NOTHING, NOTHING, NOTHING)
        transitions.outcome(step, rewards, None, None)
    count = sum(len(insertion.columns["reward"]) for insertion in writer.inserted)
    assert 180 < count <= 200, "all transitions of the valid environment are inserted"
    assert max(float(insertion.columns["reward"].max()) for insertion in writer.inserted) == 1.0
    (line,) = [record.getMessage() for record in caplog.records]
    assert {value for name, value in parameters.scalars if name == "replay/left_out"} == {0.5}
    assert line.startswith("5 of 10 transitions of client mallory are not inserted")


def test_frames_of_dropped_transitions_are_released() -> None:
    layout, writer = ObservationLayout(Box(0, 255, (4, 4), "uint8"), 1), Writer()
    transitions = WriterTransitions(writer, layout, steps=1, gamma=0.9, insert_size=10)
    rewards, inputs = np.full(2, 1e15), np.ones((2, *layout.inputs), np.uint8)
    for _ in range(500):
        transitions.act(inputs, NOTHING, np.zeros(2, np.int64))
        transitions.insert()
        transitions.outcome(StepResult(rewards, [inputs], NOTHING, NOTHING, NOTHING), rewards, None, None)
    assert writer.inserted == []
    assert sum(len(frames) for frames in transitions._buffer._frames) < 50  # type: ignore[union-attr]


@pytest.mark.parametrize(("name", "lstm"), [("da3c", False), ("da3c", True), ("n_step_q", True), ("async_q", False)])
def test_observation_of_float32_max_leaves_gradient_finite(
    name: str, lstm: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    algorithm = load_algorithm(name, Path())
    section: dict[str, Any] = {"path": name, "normalize_rewards": None, "network": {"dense": [8]}}
    if lstm:
        section |= {"lstm": True, "network": {"dense": [8], "lstm_size": 4}}
    config = algorithm.configure(section)
    spaces = Box(-LARGEST, LARGEST, (3,)), Discrete(2)
    assert algorithm.ParameterServer is not None and algorithm.Agent is not None
    initial = algorithm.ParameterServer(config, *spaces).initial_parameters(1)
    server = algorithm.ParameterServer(config, *spaces)
    parameters = FakeParameters(initial, statistics=server.statistics(), target=server.target_interval())
    parameters.register(Registration("", environments=2))
    agent = algorithm.Agent(config, AgentContext(*spaces, 2, (0, 1), 0, False, parameters, parameters.metrics))
    seen = np.array([[0.5, 0.1, 0.2], [LARGEST, -LARGEST, 1.0]], np.float32)
    agent.reset([seen])
    for _ in range(25):
        agent.step(StepResult(np.ones(2), [seen], NOTHING, NOTHING, NOTHING))
        agent.learn()
    gradients = [push.gradient for push in parameters.pushes if push.gradient is not None]
    assert gradients
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert np.isfinite(agent._inputs.state_after).all()
