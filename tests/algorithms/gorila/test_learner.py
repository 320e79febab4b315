"""Gradients and priorities of a learner for a batch of three items, computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete, LearnerBase, LearnerContext, TargetInterval, load_algorithm
from relaax.algorithm_base.network import OBSERVATION
from relaax.algorithm_base.testing import FakeParameters
from relaax.algorithm_base.transitions import DEMONSTRATION, NEXT_VALID
from relaax.parameters.interfaces import Registration
from relaax.parameters.moments import Moments
from relaax.replay.interfaces import ReplayMemory, ReplayTraffic, ReplayWriter, Sampled

GORILA = load_algorithm("gorila", Path())
SPACES = Box(-9, 9, shape=(1,)), Discrete(2)
# Q(s, a) = w_a s + b_a. The online network gives (s, 2 s), the target network (3 s, s).
THETA, THETA_MINUS = np.array([[1, 2, 0, 0], [3, 1, 0, 0]], np.float32)
# s   a   R    discount  s'   Q(s, a)  Q(s')     Q(s'; target)
# 1   0   1    0.5       2    1        (2, 4)    (6, 2)
# 2   1   0.5  0         5    4        -         -
# -3  0   0    0.25      -2   -3       (-2, -4)  (-6, -2)
BATCH = Sampled(
    columns={
        "observation": np.array([[1], [2], [-3]], np.float32),
        "action": np.array([0, 1, 0]),
        "reward": np.array([1, 0.5, 0], np.float32),
        "discount": np.array([0.5, 0, 0.25], np.float32),
        "next_observation": np.array([[2], [5], [-2]], np.float32),
    },
    probabilities=np.array([0.5, 0.25, 0.25]),
    size=4,
    ages=np.array([3, 0, 1]),
    places=np.zeros(3, np.int64),
    keys=np.array([7, 8, 9], np.uint64),
    incarnations={0: "here"},
)
SEEN = Moments.of(np.array([[-1.0], [3.0]]))  # mean 1, standard deviation 2
ONE_OF_LARGEST = np.array([0.5, 1, 1])  # importance weights for beta 1: 1 / (4 P), divided by the largest weight
HALF = Moments.of(np.array([[0.0], [1.0]]))  # standard deviation 1/2
OFFSET = 0.25  # added to each |error| in a priority


class Priorities(ReplayMemory):
    """A replay memory that keeps the updated priorities."""

    def __init__(self) -> None:
        self.given: list[np.ndarray] = []

    @property
    def writers(self) -> Sequence[ReplayWriter]:
        return []

    @property
    def traffic(self) -> ReplayTraffic:
        raise AssertionError("the process of the learner measures the traffic")

    def sample(self, count: int, timeout: float) -> Sampled | None:
        raise AssertionError("a learner receives its samples as an argument")

    def update_priorities(self, sampled: Sampled, priorities: np.ndarray) -> None:
        assert sampled.keys is BATCH.keys
        self.given.append(priorities)

    def close(self) -> None:
        raise AssertionError("a learner must not close the memory")


def learner_with(renewed: int = 1000, **keys: Any) -> tuple[LearnerBase, FakeParameters, Priorities]:
    section = {
        "path": "gorila",
        "batch_size": 3,
        "importance_exponent": 1,
        "prioritized": True,
        "priority_offset": OFFSET,
        "errors": "squared",
        "held_out_states": 0,
        "normalize_rewards": None,
        "AdaGrad": {"gradient_norm_clipping": None},
        "network": {"dense": []},
    } | keys
    config = GORILA.configure(section)
    statistics = GORILA.ParameterServer(config, *SPACES).statistics()
    parameters_client = FakeParameters(
        THETA_MINUS, learning_rate=0.1, statistics=statistics, target=TargetInterval(updates=renewed)
    )
    parameters_client.publish(THETA, {name: SEEN if name == OBSERVATION else HALF for name in statistics})
    parameters_client.register(Registration("", environments=1))
    memory = Priorities()
    assert GORILA.Learner is not None
    learner = GORILA.Learner(
        config, LearnerContext(*SPACES, 0, 0, parameters_client, parameters_client.metrics, memory)
    )
    return learner, parameters_client, memory


@pytest.mark.parametrize(
    ("keys", "errors", "gradient"),
    [
        # Targets: 1 + 0.5 x 6 = 4; 0.5; 0.25 x -2 = -0.5. Derivative by w_0: (0.5 x -6 x 1 + -5 x -3) / 3.
        ({}, [-3, 3.5, -2.5], [4, 14 / 3, -8 / 3, 7 / 3]),
        # Huber: derivatives -1, 1, -1.
        ({"errors": "huber"}, [-3, 3.5, -2.5], [2.5 / 3, 2 / 3, -0.5, 1 / 3]),
        # The online network prefers action 1 in item 0, and action 0 in item 2.
        # Targets: 1 + 0.5 x 2 = 2; 0.5; 0.25 x -6 = -1.5.
        ({"double": True}, [-1, 3.5, -1.5], [8 / 3, 14 / 3, -4 / 3, 7 / 3]),
    ],
)
def test_targets_weights_and_priorities_by_hand(
    keys: dict[str, Any], errors: list[float], gradient: list[float]
) -> None:
    learner, parameters_client, memory = learner_with(**keys)
    assert learner.batch_size == 3
    learner.step(BATCH)
    (push,) = parameters_client.pushes
    assert push.gradient is not None
    np.testing.assert_allclose(push.gradient, gradient, rtol=1e-5)
    np.testing.assert_allclose(memory.given, [np.abs(errors) + 0.25], rtol=1e-6)
    assert push.env_steps == 0
    scalars = dict(parameters_client.scalars)
    costs = np.square(errors) if keys.get("errors") != "huber" else np.abs(errors) - 0.5
    assert scalars["loss"] == pytest.approx(np.dot(ONE_OF_LARGEST, costs) / 2.5, rel=1e-5)
    assert push.loss == scalars["loss"]
    assert scalars["loss/td_error"] == pytest.approx(np.dot(ONE_OF_LARGEST, np.abs(errors)) / 2.5, rel=1e-5)
    assert scalars["q/chosen"] == pytest.approx((0.5 * 1 + 4 - 3) / 2.5)
    assert scalars["gradient/norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-5)


def test_margin_is_only_for_demonstrations() -> None:
    learner, parameters_client, _ = learner_with(demonstration_weight=2)
    learner.step(replace(BATCH, columns={**BATCH.columns, DEMONSTRATION: np.array([True, False, False])}))
    (push,) = parameters_client.pushes
    # Item 0 has Q = (1, 2), action 0: 2 x 0.5 x (2 + 0.8 - 1), with the derivative 1 by Q(s, 1) and -1 by Q(s, 0).
    np.testing.assert_allclose(push.gradient, [4 - 1 / 3, 14 / 3 + 1 / 3, -8 / 3 - 1 / 3, 7 / 3 + 1 / 3], rtol=1e-5)
    assert dict(parameters_client.scalars)["loss/margin"] == pytest.approx(1.8 / 2.5)


@pytest.mark.parametrize(
    ("double", "valid", "errors"),
    [
        # Targets: 1 + 0.5 x 2 = 2; 0.5; 0.25 x -6 = -1.5.
        (False, [[0, 1], [1, 1], [1, 0]], [-1, 3.5, -1.5]),
        # The online network prefers action 1 in item 0 and action 0 in item 2, which are not valid.
        # Targets: 1 + 0.5 x 6 = 4; 0.5; 0.25 x -2 = -0.5.
        (True, [[1, 0], [1, 1], [0, 1]], [-3, 3.5, -2.5]),
    ],
)
def test_targets_are_over_the_next_valid_actions(double: bool, valid: list[list[int]], errors: list[float]) -> None:
    learner, _, memory = learner_with(double=double)
    masked = replace(BATCH, columns={**BATCH.columns, NEXT_VALID: np.array(valid, np.bool_)})
    learner.step(masked)
    np.testing.assert_allclose(memory.given, [np.abs(errors) + 0.25], rtol=1e-6)


def test_held_out_value_is_that_of_valid_actions() -> None:
    learner, parameters_client, _ = learner_with(held_out_states=3, batch_size=3)
    masked = replace(BATCH, columns={**BATCH.columns, NEXT_VALID: np.array([[1, 0], [0, 1], [1, 1]]) == 1})
    learner.step(masked)
    learner.step(masked)
    seen = [value for name, value in parameters_client.scalars if name == "q/held_out"]
    assert seen[:1] == pytest.approx([(2 + 10 - 2) / 3])  # of the next observations 2, 5 and -2: s, 2 s, max


def test_rewards_are_divided_by_the_current_deviation() -> None:
    learner, parameters_client, _ = learner_with(normalize_rewards="scale", prioritized=False)
    learner.step(BATCH)
    (push,) = parameters_client.pushes
    # Targets: 2 + 0.5 x 6 = 5; 1; 0.25 x -2 = -0.5. Derivative by w_0: (0.5 x -8 x 1 + -5 x -3) / 3.
    np.testing.assert_allclose(push.gradient, [11 / 3, 4, -3, 2], rtol=1e-5)


def test_uniform_sampling_updates_no_priorities() -> None:
    learner, parameters_client, memory = learner_with(prioritized=False)
    learner.step(BATCH)
    assert memory.given == []
    assert len(parameters_client.pushes) == 1


def test_importance_weights_grow_with_training() -> None:
    learner, parameters_client, _ = learner_with(importance_exponent=0, final_importance_exponent=1, max_global_step=10)
    learner.exchange.env_steps = 5  # type: ignore[attr-defined]
    learner.step(BATCH)
    first = parameters_client.pushes[0]
    assert first.env_steps == 5
    assert first.gradient is not None
    # The weights are 1, 1, 1, so the first gradient is (-6 + 15) / 3. Later they are 1 / sqrt(2), 1, 1.
    assert first.gradient[0] == pytest.approx(3)
    parameters_client.publish(THETA)
    learner.step(BATCH)
    learner.step(BATCH)
    last = parameters_client.pushes[2].gradient
    assert parameters_client.pushes[1].env_steps == 0
    assert last is not None
    q = parameters_client.pushes[2].base.parameters
    error = np.array([q[0] + q[2] - 4, q[0] * -3 + q[2] + 0.5])
    assert last[0] == pytest.approx((2 * error[0] * 0.5**0.5 + 2 * error[1] * -3) / 3, rel=1e-4)


def test_gradient_is_clipped_to_the_norm() -> None:
    learner, parameters_client, _ = learner_with(AdaGrad={"gradient_norm_clipping": 0.5})
    learner.step(BATCH)
    assert np.linalg.norm(parameters_client.pushes[0].gradient) == pytest.approx(0.5)
    assert dict(parameters_client.scalars)["gradient/norm"] > 4


def test_parameters_are_pulled_at_the_sync_interval() -> None:
    learner, parameters_client, _ = learner_with(sync_interval=3, optimizer="adagrad")
    for _ in range(5):
        learner.step(BATCH)
    assert [push.base.version for push in parameters_client.pushes] == [1, 1, 1, 4, 4]
    np.testing.assert_array_equal(parameters_client.pushes[0].gradient, parameters_client.pushes[2].gradient)


def test_learner_uses_the_refreshed_target_network() -> None:
    learner, parameters_client, memory = learner_with(renewed=1)
    learner.step(BATCH)
    weights, offsets = parameters_client.parameters.astype(np.float64).reshape(2, 2)  # also those of the target network
    learner.step(BATCH)
    columns = BATCH.columns
    chosen, best = columns["observation"] * weights + offsets, columns["next_observation"] * weights + offsets
    targets = columns["reward"] + columns["discount"] * best.max(axis=1)
    errors = chosen[np.arange(3), columns["action"]] - targets
    np.testing.assert_allclose(memory.given[1], np.abs(errors) + OFFSET, rtol=1e-5)


def test_values_of_held_out_states_are_recorded_at_intervals() -> None:
    learner, parameters_client, _ = learner_with(held_out_states=3)
    for _ in range(4):
        learner.step(BATCH)
    seen = [value for name, value in parameters_client.scalars if name == "q/held_out"]
    assert seen == [pytest.approx((2 + 4 - 3) / 3)], "max Q of 1, 2 and -3 by the first parameters"


def normalized(mean: float, std: float) -> Sampled:
    """Return the batch with normalised observations."""
    columns = BATCH.columns | {
        name: (BATCH.columns[name] - np.float32(mean)) / np.float32(std) for name in ("observation", "next_observation")
    }
    return replace(BATCH, columns=columns)


@pytest.mark.parametrize("double", [False, True])
def test_learner_normalizes_by_the_merged_statistics(double: bool) -> None:
    keys: dict[str, Any] = {"double": double, "sync_interval": 1}
    learner, parameters_client, memory = learner_with(normalize_observations=True, **keys)
    plain, expected, priorities = learner_with(**keys)
    learner.step(BATCH)
    plain.step(normalized(1, 2))
    np.testing.assert_allclose(parameters_client.pushes[0].gradient, expected.pushes[0].gradient, rtol=1e-5)
    np.testing.assert_allclose(memory.given, priorities.given, rtol=1e-5)
    # The mean of -1, 3, 1 and 9 is 3, the standard deviation 14 ** 0.5.
    parameters_client.publish(THETA, {"observation": Moments.of(np.array([[1.0], [9.0]]))})
    expected.publish(THETA)
    for one, batch in ((learner, BATCH), (plain, normalized(1, 2))):
        one.step(batch)
        one.finish()  # type: ignore[attr-defined]  # the reply has the statistics
    learner.step(BATCH)
    plain.step(normalized(3, 14**0.5))
    np.testing.assert_allclose(parameters_client.pushes[2].gradient, expected.pushes[2].gradient, rtol=1e-4)


@pytest.mark.parametrize(
    ("field", "extreme"),
    [("observation", 3.4e38), ("next_observation", -3.4e38), ("reward", 1e15), ("observation", 1e5)],
)
def test_outlier_item_leaves_the_gradient_of_the_others(field: str, extreme: float) -> None:
    learner, parameters_client, memory = learner_with()
    columns = {name: column.copy() for name, column in BATCH.columns.items()}
    columns[field][2] = extreme
    learner.step(replace(BATCH, columns=columns))
    assert parameters_client.pushes[0].gradient is not None
    # The items 0 and 1 of `test_targets_weights_and_priorities_by_hand`, as a mean over two.
    np.testing.assert_allclose(parameters_client.pushes[0].gradient, [-3 / 2, 7, -3 / 2, 7 / 2], rtol=1e-5)
    np.testing.assert_allclose(memory.given, [[3 + OFFSET, 3.5 + OFFSET, OFFSET]], rtol=1e-6)
    assert dict(parameters_client.scalars)["replay/masked"] == pytest.approx(1 / 3)
