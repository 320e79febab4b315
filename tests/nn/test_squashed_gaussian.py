"""The squashed Gaussian: its density, its derivatives and its bounds."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.nn.squashed_gaussian import LARGEST_LOG_STD, LEAST_LOG_STD, sample, squashed_heads
from support.slopes import expect_slopes

RNG = np.random.default_rng(3)
OUTPUTS = {head: RNG.normal(size=(4, 3)).astype(np.float32) for head in squashed_heads(3)}
NOISE = RNG.normal(size=(4, 3)).astype(np.float32)


def log_probability(outputs: dict[str, np.ndarray], noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return actions and log-probabilities by their definitions, in double precision."""
    std = np.exp(outputs["log_std"].astype(np.float64))
    u = outputs["mean"] + std * noise.astype(np.float64)
    density = np.exp(-0.5 * noise.astype(np.float64) ** 2) / (std * np.sqrt(2 * np.pi))
    actions: np.ndarray = np.tanh(u)
    found: np.ndarray = np.log(density / (1 - actions**2)).sum(axis=1)
    return actions, found


def test_actions_and_probabilities_by_definition() -> None:
    drawn = sample(OUTPUTS, NOISE)
    actions, expected = log_probability(OUTPUTS, NOISE)
    np.testing.assert_allclose(drawn.actions, actions, rtol=1e-5)
    np.testing.assert_allclose(drawn.log_probability, expected, rtol=1e-4)


def test_probabilities_of_one_number_integrate_to_one() -> None:
    """The density over the actions, by the trapezoidal rule over a fine grid of noise."""
    noise = np.linspace(-6, 6, 20_001, dtype=np.float32)[:, None]
    outputs = {"mean": np.full_like(noise, 0.4), "log_std": np.full_like(noise, -0.7)}
    drawn = sample(outputs, noise)
    density = np.exp(drawn.log_probability.astype(np.float64))
    assert np.trapezoid(density, drawn.actions[:, 0].astype(np.float64)) == pytest.approx(1, abs=1e-3)


def test_derivatives_are_those_of_a_loss() -> None:
    weights = RNG.normal(size=4).astype(np.float32)
    by_actions = RNG.normal(size=(4, 3)).astype(np.float32)

    def loss(outputs: dict[str, np.ndarray]) -> float:
        actions, log_pi = log_probability(outputs, NOISE)
        return float(np.dot(weights, log_pi) + (by_actions * actions).sum())

    expect_slopes(sample(OUTPUTS, NOISE).gradient(weights, by_actions), OUTPUTS, loss)


def test_log_std_is_bounded_and_has_no_derivative_there() -> None:
    outputs = {"mean": np.zeros((1, 3), np.float32), "log_std": np.array([[-30, 0, 5]], np.float32)}
    drawn = sample(outputs, np.ones((1, 3), np.float32))
    np.testing.assert_allclose(drawn.std, np.exp([[LEAST_LOG_STD, 0, LARGEST_LOG_STD]]), rtol=1e-6)
    slopes = drawn.gradient(1.0, np.ones((1, 3), np.float32))["log_std"][0]
    assert slopes[0] == slopes[2] == 0
    assert slopes[1] != 0


def test_probabilities_of_extreme_actions_are_finite() -> None:
    outputs = {"mean": np.array([[-100, 100, 1e6]], np.float32), "log_std": np.full((1, 3), 2, np.float32)}
    drawn = sample(outputs, np.array([[-5, 5, 0]], np.float32))
    assert np.isfinite(drawn.log_probability).all()
    np.testing.assert_array_equal(drawn.actions, [[-1, 1, 1]])
