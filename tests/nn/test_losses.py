from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from relaax.nn.losses import categorical_entropy, clip_by_norm, policy_gradient_loss, value_loss
from support.gradients import finite_differences, gradient_of

LOG_3 = math.log(3.0)
# softmax([log 3, 0]) = [3/4, 1/4].
LOGITS = np.array([[LOG_3, 0.0]], np.float32)


def some_logits() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32)


def test_policy_loss_is_minus_log_probability_times_advantage() -> None:
    loss = policy_gradient_loss(tf.constant([-2.0, -0.5, 1.5]), tf.constant([3.0, -4.0, 2.0]))
    assert loss.numpy().tolist() == [6.0, -2.0, -3.0]


def test_the_slope_of_the_policy_loss_is_minus_the_advantage() -> None:
    found = gradient_of(lambda p: policy_gradient_loss(p, tf.constant([2.0, -3.0])), np.array([-1, -1], np.float32))
    assert found.tolist() == [-2.0, 3.0]


def test_no_gradient_flows_through_the_advantage() -> None:
    found = gradient_of(lambda v: policy_gradient_loss(tf.constant([-1.0]), 5.0 - v), np.array([1.0], np.float32))
    assert found.tolist() == [0.0]


def test_entropy_by_hand() -> None:
    # H([3/4, 1/4]) = log 4 - 3/4 log 3;  H(uniform over 2) = log 2.
    found = categorical_entropy(tf.constant([[LOG_3, 0.0], [7.0, 7.0]])).numpy()
    np.testing.assert_allclose(found, [math.log(4) - 0.75 * LOG_3, math.log(2)], rtol=1e-6)


def test_entropy_of_certainty_is_zero_and_finite() -> None:
    logits = np.array([[1000.0, 0.0, -1000.0]], np.float32)
    np.testing.assert_allclose(categorical_entropy(tf.constant(logits)).numpy(), [0.0], atol=1e-6)
    assert np.isfinite(gradient_of(categorical_entropy, logits)).all()


def test_entropy_gradient_by_hand() -> None:
    # dH/dz_i = -pi_i (log pi_i + H). With pi = [3/4, 1/4]: -3/4 (log 3/4 + log 4 - 3/4 log 3) = -3/16 log 3.
    found = gradient_of(categorical_entropy, LOGITS)
    np.testing.assert_allclose(found, [[-3 / 16 * LOG_3, 3 / 16 * LOG_3]], rtol=1e-5)


def test_value_loss_by_hand() -> None:
    found = value_loss(tf.constant([1.0, -2.0]), tf.constant([4.0, -2.5])).numpy()
    assert found.tolist() == [9.0, 0.25]  # (4 - 1)^2, (-2.5 + 2)^2


def test_value_gradient_points_away_from_the_target() -> None:
    # d (R - v)^2 / dv = -2 (R - v) = -2 * 3.
    found = gradient_of(lambda v: value_loss(v, tf.constant([4.0])), np.array([1.0], np.float32))
    assert found.tolist() == [-6.0]


def test_no_gradient_flows_through_the_target() -> None:
    found = gradient_of(lambda target: value_loss(tf.constant([1.0]), target), np.array([4.0], np.float32))
    assert found.tolist() == [0.0]


@pytest.mark.parametrize(
    "loss",
    [
        categorical_entropy,
        lambda z: policy_gradient_loss(z[:, 0], tf.constant([1.0, -2.0, 0.5, 3.0, 0.0])),
        lambda z: value_loss(z[:, 0], tf.constant([1.0, -2.0, 0.5, 3.0, 0.0])),
    ],
    ids=["entropy", "policy", "value"],
)
def test_gradients_equal_finite_differences(loss: Callable[[Any], Any]) -> None:
    at = some_logits()
    np.testing.assert_allclose(gradient_of(loss, at), finite_differences(loss, at), atol=2e-3)


def test_losses_are_one_number_per_example() -> None:
    logits, ones = tf.constant(some_logits()), tf.ones(5)
    assert policy_gradient_loss(ones, ones).shape == (5,)
    assert categorical_entropy(logits).shape == (5,)
    assert value_loss(ones, ones).shape == (5,)


def test_shapes_that_would_broadcast_are_refused() -> None:
    column, row = tf.zeros([5, 1]), tf.zeros([5])
    with pytest.raises(ValueError, match="rank"):
        policy_gradient_loss(row, column)
    with pytest.raises(ValueError, match="rank"):
        policy_gradient_loss(column, row)
    with pytest.raises(ValueError, match="rank"):
        value_loss(column, row)
    with pytest.raises(ValueError, match="rank"):
        value_loss(row, column)
    with pytest.raises(ValueError, match="rank"):
        categorical_entropy(row)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(2.5, [1.5, -2.0]), (5.0, [3.0, -4.0]), (40.0, [3.0, -4.0]), (None, [3.0, -4.0])],
)
def test_a_gradient_is_cut_to_the_norm_and_keeps_its_direction(limit: float | None, expected: list[float]) -> None:
    clipped, norm = clip_by_norm(tf.constant([3.0, -4.0]), limit)  # of norm 5
    np.testing.assert_allclose(clipped.numpy(), expected, rtol=1e-6)
    assert float(norm) == pytest.approx(5.0)


def test_clipping_nothing_gives_nothing() -> None:
    clipped, norm = clip_by_norm(tf.zeros(3), 1.0)
    assert (clipped.numpy().tolist(), float(norm)) == ([0.0, 0.0, 0.0], 0.0)
