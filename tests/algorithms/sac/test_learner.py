"""Gradients and targets of SAC's learner: by hand, and compared with TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from algorithms._continuous.model import joined_inputs
from relaax.algorithm_base import Box, Dict, LearnerContext, TargetInterval, load_algorithm
from relaax.algorithm_base.testing import FakeParameters
from relaax.algorithm_base.testing.harness import local_replay
from relaax.parameters.interfaces import Registration
from relaax.replay.interfaces import Insertion
from support.reference_sac import random_columns, sac_gradient, sampled_from

SAC = load_algorithm("sac", Path())
INPUTS, ACTIONS, COUNT = 5, 2, 12
SPACES = Box(-9, 9, shape=(INPUTS,)), Box(-3, 1, shape=(ACTIONS,))
COLUMNS = random_columns(COUNT, INPUTS, ACTIONS)
SIZES = {"inputs": INPUTS, "actions": ACTIONS, "policy_layers": (16, 8), "critic_layers": (16, 8)}


def learner_with(spaces: Any = SPACES, **keys: Any) -> tuple[Any, FakeParameters, np.ndarray, np.ndarray]:
    """Return a learner, its parameter server, and random parameters of the networks and their targets."""
    config = SAC.configure({"path": "sac", "batch_size": COUNT, "network": {"dense": [16, 8]}} | keys)
    size = len(SAC.ParameterServer(config, *spaces).initial_parameters(0))
    target, online = (0.4 * np.random.default_rng(4).normal(size=(2, size))).astype(np.float32)
    parameters_client = FakeParameters(target, learning_rate=0.0, target=TargetInterval(updates=10_000))
    parameters_client.publish(online, {})
    parameters_client.register(Registration("", environments=1))
    replay = local_replay(SAC, config, *spaces, 1)
    assert replay is not None
    assert SAC.Learner is not None
    context = LearnerContext(*spaces, 6, 3, parameters_client, parameters_client.metrics, replay)
    return SAC.Learner(config, context), parameters_client, online, target


@pytest.mark.parametrize(
    ("keys", "target_entropy"),
    [
        ({}, -2.0),
        ({"target_entropy": 0.5, "network": {"dense": [16, 8], "activation": "tanh"}}, 0.5),
        ({"prioritized": True, "importance_exponent": 1}, -2.0),
    ],
    ids=["paper", "tanh", "prioritised"],
)
def test_gradient_equals_that_of_tensorflow(keys: dict[str, Any], target_entropy: float) -> None:
    probabilities = np.arange(1.0, COUNT + 1) / np.arange(1.0, COUNT + 1).sum()
    learner, parameters_client, online, target = learner_with(**keys)
    learner.step(sampled_from(COLUMNS, probabilities))
    rng = np.random.default_rng([6, 3])
    noises = tuple(rng.standard_normal((COUNT, ACTIONS), np.float32) for _ in range(2))
    weights = np.ones(COUNT) / COUNT
    if keys.get("prioritized"):
        weights = probabilities.min() / probabilities / COUNT
    else:
        weights = (probabilities.min() / probabilities) ** 0.4 / COUNT
    expected, targets = sac_gradient(
        online,
        target,
        COLUMNS,
        weights,
        noises,  # type: ignore[arg-type]
        target_entropy,
        activation=tf.nn.tanh if "network" in keys else tf.nn.relu,
        **SIZES,
    )
    (push,) = parameters_client.pushes
    assert push.gradient is not None
    np.testing.assert_allclose(push.gradient, expected, rtol=2e-3, atol=2e-5)
    assert np.abs(expected).max() > 0.1
    scalars = dict(parameters_client.scalars)
    assert scalars["temperature"] == pytest.approx(np.exp(online[-1]))
    assert np.isfinite(targets).all()


def test_terminal_transitions_have_only_their_rewards() -> None:
    learner, _, _, _ = learner_with()
    columns = COLUMNS | {"discount": np.zeros(COUNT, np.float32)}
    np.testing.assert_array_equal(learner._targets(columns), columns["reward"])


def test_fixed_temperature_has_no_gradient() -> None:
    learner, parameters_client, _, _ = learner_with(learn_temperature=False)
    learner.step(sampled_from(COLUMNS))
    (push,) = parameters_client.pushes
    assert push.gradient is not None
    assert push.gradient[-1] == 0


@pytest.mark.parametrize(("entropy", "sign"), [(-50.0, 1), (50.0, -1)])
def test_temperature_falls_if_the_entropy_is_too_large(entropy: float, sign: int) -> None:
    """With a positive derivative, descent lowers the temperature."""
    learner, parameters_client, _, _ = learner_with(target_entropy=entropy)
    learner.step(sampled_from(COLUMNS))
    (push,) = parameters_client.pushes
    assert push.gradient is not None
    assert np.sign(push.gradient[-1]) == sign


def test_initial_temperature_is_the_last_number() -> None:
    config = SAC.configure({"path": "sac", "initial_temperature": 0.2})
    server = SAC.ParameterServer(config, *SPACES)
    assert np.exp(server.initial_parameters(1)[-1]) == pytest.approx(0.2)
    assert server.target_interval() == TargetInterval(updates=1, tau=0.005)


def test_networks_and_temperature_have_own_learning_rates() -> None:
    keys = {"initial_learning_rate": 1e-3, "critic_learning_rate": 4e-3, "network": {"dense": [16, 8]}}
    server = SAC.ParameterServer(SAC.configure({"path": "sac"} | keys), *SPACES)
    policy = 16 * (INPUTS + 1) + 8 * 17 + 2 * ACTIONS * 9
    critics = 2 * (16 * (INPUTS + ACTIONS + 1) + 8 * 17 + 9)
    assert server.learning_rates() == [(policy, 1.0), (critics, 4.0), (1, 1.0)]
    assert len(server.initial_parameters(0)) == policy + critics + 1
    server = SAC.ParameterServer(SAC.configure({"path": "sac", "temperature_learning_rate": 3e-5}), *SPACES)
    assert [factor for _, factor in server.learning_rates()] == [1, 1, pytest.approx(0.1)]
    assert SAC.ParameterServer(SAC.configure({"path": "sac"}), *SPACES).learning_rates() == ()


def test_new_priorities_are_the_mean_error_of_the_critics() -> None:
    learner, _, online, target = learner_with(prioritized=True, priority_offset=0.25)
    replay = learner.context.replay
    replay.writers[0].insert(Insertion(COLUMNS, None, None, 0))
    seen: list[np.ndarray] = []
    replay.update_priorities = lambda sampled, priorities: seen.append(priorities)
    learner.step(sampled_from(COLUMNS))
    rng = np.random.default_rng([6, 3])
    noises = tuple(rng.standard_normal((COUNT, ACTIONS), np.float32) for _ in range(2))
    _, targets = sac_gradient(online, target, COLUMNS, np.ones(COUNT), noises, -2.0, **SIZES)  # type: ignore[arg-type]
    values = np.stack([learner._critic.act(_joined(), np.zeros((COUNT, 0)))[0][head][:, 0] for head in ("q1", "q2")])
    np.testing.assert_allclose(seen[0], np.abs(values - targets).mean(axis=0) + 0.25, rtol=1e-3)


def _joined() -> np.ndarray:
    return np.concatenate([COLUMNS["observation"], COLUMNS["action"]], axis=1)


def test_critics_see_pixels_from_zero_to_one() -> None:
    images, actions = np.array([[[[0], [255]]], [[[51], [102]]]], np.uint8), np.array([[-1], [0.5]], np.float32)
    np.testing.assert_allclose(joined_inputs(images, actions), [[0, 1, -1], [0.2, 0.4, 0.5]], rtol=1e-6)


@pytest.mark.parametrize("numbers", [False, True], ids=["image", "image and numbers"])
def test_images_are_learned_from(numbers: bool) -> None:
    """The derivative by the critic's parameters for an image agrees with finite differences of its loss."""
    image = Box(0, 255, shape=(9, 9, 1), dtype="uint8")
    space = Dict({"camera": image, "speed": Box(-1, 1, shape=(2,))}) if numbers else image
    network = {"dense": [8], "convolutions": [{"filters": 2, "kernel": 3, "stride": 2}]}
    learner, parameters_client, online, _ = learner_with((space, SPACES[1]), history_len=2, network=network)
    rng = np.random.default_rng(2)
    if numbers:
        shape, values = (COUNT, 9 * 9 * 2 + 2), rng.random
        columns = {name: values(shape).astype(np.float32) for name in ("observation", "next_observation")}
    else:
        columns = {
            name: rng.integers(0, 256, (COUNT, 9, 9, 2), dtype=np.uint8) for name in ("observation", "next_observation")
        }
    batch = sampled_from({**COLUMNS, **columns})
    learner.step(batch)
    (push,) = parameters_client.pushes
    assert push.gradient is not None
    critic = learner._layout_of_vector.slices["critic"]
    direction = np.zeros_like(online)
    direction[critic] = rng.normal(size=critic.stop - critic.start)

    def loss(vector: np.ndarray) -> float:
        other, client, _, _ = learner_with((space, SPACES[1]), history_len=2, network=network)
        client.publish(vector.astype(np.float32), {})
        other._use(client.pull())
        return float(other._gradient(batch)[2]["loss"])

    slope = (loss(online + 1e-3 * direction) - loss(online - 1e-3 * direction)) / 2e-3
    assert float(push.gradient @ direction) == pytest.approx(slope, rel=0.02)
