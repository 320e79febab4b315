"""Gradients, targets and priorities of Ape-X DPG's learner, compared with TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from relaax.algorithm_base import Box, LearnerContext, TargetInterval, load_algorithm
from relaax.algorithm_base.testing import FakeParameters
from relaax.algorithm_base.testing.harness import local_replay
from relaax.parameters.interfaces import Registration
from support.reference_sac import dpg_gradient, random_columns, sampled_from

DPG = load_algorithm("apex_dpg", Path())
INPUTS, ACTIONS, COUNT = 4, 3, 9
SPACES = Box(-9, 9, shape=(INPUTS,)), Box(-3, 1, shape=(ACTIONS,))
COLUMNS = random_columns(COUNT, INPUTS, ACTIONS)
PROBABILITIES = np.arange(1.0, COUNT + 1) / np.arange(1.0, COUNT + 1).sum()
BATCH = sampled_from(COLUMNS, PROBABILITIES)


@pytest.mark.parametrize("bound", [None, 1.0, 0.05])
def test_gradient_and_priorities_equal_those_of_tensorflow(bound: float | None) -> None:
    section = {
        "path": "apex_dpg",
        "batch_size": COUNT,
        "priority_offset": 0.25,
        "action_gradient_clipping": bound,
        "network": {"dense": [8, 6]},
        "critic_dense": [10, 7],
    }
    config = DPG.configure(section)
    size = len(DPG.ParameterServer(config, *SPACES).initial_parameters(0))
    target, online = (0.4 * np.random.default_rng(4).normal(size=(2, size))).astype(np.float32)
    parameters_client = FakeParameters(target, learning_rate=0.0, target=TargetInterval(updates=10_000))
    parameters_client.publish(online, {})
    parameters_client.register(Registration("", environments=1))
    replay: Any = local_replay(DPG, config, *SPACES, 1)
    given: list[np.ndarray] = []
    replay.update_priorities = lambda sampled, priorities: given.append(priorities)
    assert DPG.Learner is not None
    learner: Any = DPG.Learner(
        config, LearnerContext(*SPACES, 0, 0, parameters_client, parameters_client.metrics, replay)
    )
    learner.step(BATCH)
    expected, targets = dpg_gradient(
        online,
        target,
        COLUMNS,
        (PROBABILITIES.min() / PROBABILITIES) ** 0.4 / COUNT,
        np.inf if bound is None else bound,
        inputs=INPUTS,
        actions=ACTIONS,
        policy_layers=(8, 6),
        critic_layers=(10, 7),
        activation=tf.nn.tanh,
    )
    (push,) = parameters_client.pushes
    assert push.gradient is not None
    np.testing.assert_allclose(push.gradient, expected, rtol=2e-3, atol=2e-5)
    joined = np.concatenate([COLUMNS["observation"], COLUMNS["action"]], axis=1)
    values = learner._critic.act(joined, np.zeros((COUNT, 0)))[0]["q"][:, 0]
    np.testing.assert_allclose(given, [np.abs(values - targets) + 0.25], rtol=1e-3)
    weights = PROBABILITIES**-0.4
    assert dict(parameters_client.scalars)["q/mean"] == pytest.approx(np.average(values, weights=weights), rel=1e-4)
    outputs, _ = learner._policy.act(COLUMNS["observation"], np.zeros((COUNT, 0)))
    joined[:, INPUTS:] = np.tanh(outputs["mean"])
    best = learner._critic.act(joined, np.zeros((COUNT, 0)))[0]["q"][:, 0]
    assert dict(parameters_client.scalars)["loss/policy"] == pytest.approx(-np.average(best, weights=weights), rel=1e-4)
