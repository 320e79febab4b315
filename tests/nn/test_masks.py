"""Distributions over the valid actions only: probabilities, entropies, derivatives and draws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from relaax.algorithm_base.acting.exploration import epsilon_greedy
from relaax.nn.distributions import (
    Bernoulli,
    Categorical,
    Composite,
    Distribution,
    Gaussian,
    MultiCategorical,
)
from support.slopes import expect_slopes

ONE = Categorical(6)
SEVERAL = MultiCategorical([2, 5, 3])
MIXED = Composite([Gaussian(2), Categorical(4), Bernoulli(3), MultiCategorical([3, 2])], [0.5, 2, 1, 3])
POLICIES = [ONE, SEVERAL, MIXED]
NAMES = ["one choice", "several choices", "mixed"]


def masks_for(policy: Distribution, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return random masks, bool [count, elements], with at least one valid action of each choice."""
    masks = [rng.random((count, size)) < 0.4 for size in policy.choices]
    for mask in masks:
        mask[np.arange(count), rng.integers(0, mask.shape[1], count)] = True
    return np.concatenate(masks, axis=1)


def outputs_of(policy: Distribution, count: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(6)
    return {head: (scale * rng.normal(size=(count, width))).astype(np.float32) for head, width in policy.heads.items()}


def parts_of(policy: Distribution) -> list[tuple[Distribution, str]]:
    """Return the parts of a policy and the suffixes of their heads."""
    return [(part, f".{i}") for i, part in enumerate(policy.parts)] if isinstance(policy, Composite) else [(policy, "")]


def terms(policy: Distribution, given: dict[str, np.ndarray], actions: np.ndarray, valid: np.ndarray) -> list:
    """Return log pi and the weighted entropy by their definitions over the valid actions, in double precision."""
    count = len(actions)
    total = [np.zeros(count), np.zeros(count)]
    start = column = 0
    weights = [0.5, 2, 1, 3] if isinstance(policy, Composite) else [1]
    for (part, suffix), weight in zip(parts_of(policy), weights, strict=True):
        size = int(np.prod(part.action_shape))
        own = actions.reshape(count, -1)[:, column : column + size]
        column += size
        if isinstance(part, Gaussian):
            variance = np.log1p(np.exp(given[f"variance{suffix}"])) + 1e-6
            error = own - given[f"mean{suffix}"]
            total[0] -= 0.5 * (error**2 / variance + np.log(2 * np.pi * variance)).sum(axis=1)
            total[1] += weight * 0.5 * np.log(2 * np.pi * np.e * variance).sum(axis=1)
        elif isinstance(part, Bernoulli):
            p = 1 / (1 + np.exp(-given[f"policy{suffix}"]))
            total[0] += np.log(np.where(own == 1, p, 1 - p)).sum(axis=1)
            total[1] -= weight * (p * np.log(p) + (1 - p) * np.log(1 - p)).sum(axis=1)
        else:
            logits = np.split(given[f"policy{suffix}"], np.cumsum(part.choices)[:-1], axis=1)
            for k, z in enumerate(logits):
                mask = valid[:, start : start + z.shape[1]]
                start += z.shape[1]
                for i in range(count):  # over the valid actions only
                    kept = np.flatnonzero(mask[i])
                    p = np.exp(z[i, kept]) / np.exp(z[i, kept]).sum()
                    total[0][i] += np.log(p[np.flatnonzero(kept == own[i, k])[0]])
                    total[1][i] -= weight * (p * np.log(p)).sum()
    return total


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
def test_masked_gradient_is_the_slope_of_the_loss(policy: Distribution) -> None:
    count, rng = 4, np.random.default_rng(2)
    outputs, valid = outputs_of(policy, count), masks_for(policy, count, rng)
    actions = policy.sample(policy.masked(outputs, valid), rng)
    by_log_probability = np.array([-0.7, 1.3, 0.4, -2.0], np.float32)
    by_entropy = np.array([-0.2, -0.1, 0.3, -1.0], np.float32)

    def loss(given: dict[str, np.ndarray]) -> float:
        log_probability, entropy = terms(policy, given, actions, valid)
        return float((log_probability * by_log_probability + by_entropy * entropy).sum())

    found, log_probability, entropy = policy.gradient(
        policy.masked(outputs, valid), actions, by_log_probability, by_entropy
    )
    exact = {head: output.astype(np.float64) for head, output in outputs.items()}
    expected = terms(policy, exact, actions, valid)
    np.testing.assert_allclose(log_probability, expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(entropy, expected[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        policy.log_probability(policy.masked(outputs, valid), actions), expected[0], rtol=1e-5, atol=1e-6
    )
    expect_slopes(found, outputs, loss)


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
def test_outputs_of_excluded_actions_have_no_gradient(policy: Distribution) -> None:
    rng = np.random.default_rng(3)
    outputs, valid = outputs_of(policy, 50, 30.0), masks_for(policy, 50, rng)
    actions = policy.sample(policy.masked(outputs, valid), rng)
    ones = np.ones(50, np.float32)
    found, *_ = policy.gradient(policy.masked(outputs, valid), actions, ones, ones)
    start = 0
    for part, suffix in parts_of(policy):
        if part.choices:
            mask = valid[:, start : start + sum(part.choices)]
            start += sum(part.choices)
            assert (found[f"policy{suffix}"][~mask] == 0).all()
    assert all(np.isfinite(each).all() for each in found.values())


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e30])
def test_a_million_draws_are_valid(policy: Distribution, scale: float) -> None:
    rng, draws = np.random.default_rng(4), 1_000_000
    valid = masks_for(policy, draws, rng)
    outputs = {head: np.repeat(output, draws, axis=0) for head, output in outputs_of(policy, 1, scale).items()}
    masked = policy.masked(outputs, valid)
    for actions in (policy.sample(masked, rng), policy.mode(masked)):
        assert_valid(policy, actions, valid)


def assert_valid(policy: Distribution, actions: np.ndarray, valid: np.ndarray) -> None:
    rows, start, column = np.arange(len(valid)), 0, 0
    flat = actions.reshape(len(valid), -1)
    for part, _ in parts_of(policy):
        for k, size in enumerate(part.choices):
            assert valid[rows, start + flat[:, column + k].astype(np.int64)].all()
            start += size
        column += int(np.prod(part.action_shape))


@pytest.mark.parametrize("logits", [[0.0, 1, 2], [1e30, -1e30, 0], [3e38, 3e38, -3e38]])
def test_only_valid_action_is_certain(logits: list[float]) -> None:
    policy, one = Categorical(3), np.ones(1, np.float32)
    for action in range(3):
        valid = np.arange(3)[None] == action
        outputs = policy.masked({"policy": np.array([logits], np.float32)}, valid)
        found, log_probability, entropy = policy.gradient(outputs, np.array([action]), one, one)
        assert (found["policy"].tolist(), log_probability[0], entropy[0]) == ([[0, 0, 0]], 0, 0)
        assert policy.mode(outputs)[0] == action


def test_samples_follow_the_probabilities_of_valid_actions() -> None:
    outputs = {"policy": np.log(np.tile(np.array([[0.5, 0.1, 0.2, 0.2]], np.float32), (200_000, 1)))}
    valid = np.tile([False, True, True, False], (200_000, 1))
    policy = Categorical(4)
    drawn = policy.sample(policy.masked(outputs, valid), np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(1 + 2 / 3, abs=0.01)


def test_no_mask_changes_nothing() -> None:
    for policy in POLICIES:
        outputs = outputs_of(policy, 2)
        assert policy.masked(outputs, None) is outputs


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_epsilon_greedy_draws_only_valid_actions(epsilon: float) -> None:
    rng, draws = np.random.default_rng(5), 1_000_000
    valid = masks_for(ONE, draws, rng)
    values = np.repeat(rng.normal(size=(1, 6)), draws, axis=0)
    actions = epsilon_greedy(values, epsilon, rng, valid)
    assert_valid(ONE, actions, valid)


def test_random_actions_are_uniform_over_valid_ones() -> None:
    valid = np.tile([True, False, True, False, False, True], (300_000, 1))
    actions = epsilon_greedy(np.zeros((300_000, 6)), 1.0, np.random.default_rng(0), valid)
    np.testing.assert_allclose(np.bincount(actions, minlength=6) / 100_000, valid[0], atol=0.01)


def test_greedy_action_is_the_best_valid_one() -> None:
    values = np.array([[-5.0, -3, 9], [4, 1, 2]])
    valid = np.array([[True, True, False], [False, True, True]])
    greedy: Callable[..., np.ndarray] = epsilon_greedy
    assert greedy(values, 0.0, np.random.default_rng(0), valid).tolist() == [1, 2]
