"""`Composite`, compared with its parts and with the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from relaax.nn.distributions import Bernoulli, Categorical, Composite, Distribution, Gaussian, MultiCategorical

PARTS: tuple[Distribution, ...] = (
    Gaussian(2),
    Categorical(3),
    MultiCategorical((2, 4)),
    Bernoulli(2),
    Gaussian(3, True),
)
WEIGHTS = (0.5, 2.0, 0.0, 3.0, 0.25)
COLUMNS = (slice(0, 2), slice(2, 3), slice(3, 5), slice(5, 7), slice(7, 10))
MANY = 40_000
NOTHING, ONE = np.zeros(MANY, np.float32), np.ones(MANY, np.float32)


def composite(parts: tuple[Distribution, ...] = PARTS) -> Composite:
    return Composite(parts, WEIGHTS[: len(parts)])


def outputs_of(policy: Distribution, rows: int, repeated: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    drawn = {head: rng.normal(size=(1 if repeated else rows, width)) for head, width in policy.heads.items()}
    return {head: np.repeat(each, rows // len(each), axis=0).astype(np.float32) for head, each in drawn.items()}


def own(index: int, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a part, by their names without the part's number."""
    ending = f".{index}"
    return {head.removesuffix(ending): each for head, each in outputs.items() if head.endswith(ending)}


def own_actions(index: int, actions: np.ndarray) -> np.ndarray:
    part = PARTS[index]
    return actions[:, COLUMNS[index]].reshape(-1, *part.action_shape).astype(part.action_dtype)


def likelihood(part: Distribution, outputs: dict[str, np.ndarray], a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log pi(a) and the entropy by the definitions, in the precision of the outputs."""
    if isinstance(part, Gaussian):
        variance = np.broadcast_to(np.log1p(np.exp(outputs["variance"])) + 1e-6, outputs["mean"].shape)
        squares = (a - outputs["mean"]) ** 2 / variance
        log_probability = -0.5 * (squares + np.log(2 * math.pi * variance)).sum(axis=1)
        return log_probability, 0.5 * np.log(2 * math.pi * math.e * variance).sum(axis=1)
    z = outputs["policy"]
    if isinstance(part, Bernoulli):
        p = 1 / (1 + np.exp(-z))
        return np.log(np.where(a == 1, p, 1 - p)).sum(axis=1), -(p * np.log(p) + (1 - p) * np.log(1 - p)).sum(axis=1)
    sums = np.zeros((2, len(a)))
    for k, logits in enumerate(np.split(z, np.cumsum(part.choices)[:-1], axis=1)):
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        sums[0] += np.log(p[np.arange(len(a)), a.reshape(len(a), -1)[:, k]])
        sums[1] -= (p * np.log(p)).sum(axis=1)
    return sums[0], sums[1]


def test_heads_and_actions_are_those_of_the_parts_in_order() -> None:
    policy = composite()
    assert policy.heads == {
        "mean.0": 2, "variance.0": 2, "policy.1": 3, "policy.2": 6, "policy.3": 2, "mean.4": 3, "variance.4": 1,
    }  # fmt: skip
    assert (policy.action_shape, policy.choices, policy.columns) == ((10,), (3, 2, 4), COLUMNS)


def test_samples_follow_the_distributions_of_the_parts() -> None:
    policy = composite()
    outputs = outputs_of(policy, MANY, repeated=True)
    actions = policy.sample(outputs, np.random.default_rng(0))
    assert (actions.shape, actions.dtype) == ((MANY, 10), policy.action_dtype)
    for index in (0, 4):
        mean, raw = (own(index, outputs)[head][0].astype(float) for head in ("mean", "variance"))
        drawn = actions[:, COLUMNS[index]]
        np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=0.05)
        np.testing.assert_allclose(drawn.var(axis=0), np.broadcast_to(np.log1p(np.exp(raw)), mean.shape), rtol=0.05)
    for columns, logits in (
        (2, outputs["policy.1"][0]), (3, outputs["policy.2"][0, :2]), (4, outputs["policy.2"][0, 2:]),
    ):  # fmt: skip
        shares = np.bincount(actions[:, columns].astype(int), minlength=len(logits)) / MANY
        np.testing.assert_allclose(shares, np.exp(logits) / np.exp(logits).sum(), atol=0.01)
    np.testing.assert_allclose(
        actions[:, COLUMNS[3]].mean(axis=0), 1 / (1 + np.exp(-outputs["policy.3"][0])), atol=0.01
    )
    correlations = np.corrcoef(actions.T) - np.eye(10)
    assert np.abs(correlations).max() < 0.03, "all numbers are drawn independently"


def test_mode_is_the_mode_of_each_part() -> None:
    policy = composite()
    outputs = outputs_of(policy, 7)
    actions = policy.mode(outputs)
    for index, part in enumerate(PARTS):
        np.testing.assert_array_equal(policy.actions_of(index, actions), part.mode(own(index, outputs)))
        assert policy.actions_of(index, actions).dtype == part.action_dtype


def test_large_choices_are_kept_exactly() -> None:
    count = 2**24 + 2  # float32 cannot represent the last choice
    policy = Composite([Gaussian(1), Categorical(count)])
    outputs = {head: np.zeros((1, width), np.float32) for head, width in policy.heads.items()}
    outputs["policy.1"][0, -1] = 1
    assert policy.actions_of(1, policy.mode(outputs)).tolist() == [count - 1]


def test_log_probability_is_the_sum_over_the_parts() -> None:
    policy = composite()
    outputs = outputs_of(policy, MANY)
    actions = policy.sample(outputs, np.random.default_rng(1))
    wanted = sum(likelihood(part, own(i, outputs), own_actions(i, actions))[0] for i, part in enumerate(PARTS))
    np.testing.assert_allclose(policy.log_probability(outputs, actions), wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(policy.gradient(outputs, actions, NOTHING, NOTHING)[1], wanted, rtol=1e-4, atol=1e-4)


def test_entropy_is_the_weighted_sum_over_the_parts() -> None:
    policy = composite()
    outputs = outputs_of(policy, MANY)
    actions = policy.sample(outputs, np.random.default_rng(1))
    entropies = [likelihood(part, own(i, outputs), own_actions(i, actions))[1] for i, part in enumerate(PARTS)]
    wanted = sum(weight * entropy for weight, entropy in zip(WEIGHTS, entropies, strict=True))
    np.testing.assert_allclose(policy.gradient(outputs, actions, NOTHING, ONE)[2], wanted, rtol=1e-4, atol=1e-4)
    unweighted = Composite(PARTS).gradient(outputs, actions, NOTHING, ONE)[2]
    np.testing.assert_allclose(unweighted, sum(entropies), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("by", [(-0.7, 0.0), (0.0, 1.0), (1.3, -0.2)], ids=["log-probability", "entropy", "both"])
def test_gradient_is_the_slope_of_the_definitions(by: tuple[float, float]) -> None:
    policy = composite()
    outputs = outputs_of(policy, 3)
    actions = policy.sample(outputs, np.random.default_rng(1))

    def loss(given: dict[str, np.ndarray]) -> float:
        terms = [likelihood(part, own(i, given), own_actions(i, actions)) for i, part in enumerate(PARTS)]
        return float(sum((by[0] * a + by[1] * w * h).sum() for (a, h), w in zip(terms, WEIGHTS, strict=True)))

    found, *_ = policy.gradient(outputs, actions, *(np.full(3, each, np.float32) for each in by))
    assert found.keys() == policy.heads.keys()
    exact = {head: each.astype(np.float64) for head, each in outputs.items()}
    for head, each in exact.items():
        for place in np.ndindex(each.shape):
            ends = []
            for move in (1e-5, -1e-5):
                moved = each.copy()
                moved[place] += move
                ends.append(loss(exact | {head: moved}))
            slope = (ends[0] - ends[1]) / 2e-5
            assert found[head][place] == pytest.approx(slope, rel=2e-3, abs=2e-4), (head, place)
            assert found[head].dtype == np.float32


@pytest.mark.parametrize("spherical", [False, True])
def test_weights_of_a_gaussian_are_those_of_separate_gaussians(spherical: bool) -> None:
    # A spherical Gaussian has one variance v: its weighted entropy is the sum of the weights times that of one number.
    weights = np.array([0.5, 0.5, 2.0])
    policy = Gaussian(3, spherical, weights)
    outputs = outputs_of(policy, 4)
    actions = policy.sample(outputs, np.random.default_rng(2))
    two = np.full(4, 2, np.float32)
    found, _, entropy = policy.gradient(outputs, actions, np.zeros(4, np.float32), two)
    wanted, by_variance = np.zeros(4), np.zeros_like(outputs["variance"])
    for number, weight in enumerate(weights):
        column = 0 if spherical else number
        alone = {"mean": outputs["mean"][:, [number]], "variance": outputs["variance"][:, [column]]}
        slopes, _, one = Gaussian(1).gradient(alone, actions[:, [number]], np.zeros(4, np.float32), two)
        wanted += weight * one
        by_variance[:, [column]] += np.float32(weight) * slopes["variance"]
    np.testing.assert_allclose(entropy, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["variance"], by_variance, rtol=1e-4, atol=1e-6)
    assert not found["mean"].any()


def test_mask_excludes_choices_of_its_parts_only() -> None:
    policy = composite()
    outputs = outputs_of(policy, MANY)
    valid = np.ones((MANY, 9), np.bool_)  # 3 of part 1, 2 and 4 of part 2
    valid[:, [0, 4, 6, 8]] = False
    limited = policy.masked(outputs, valid)
    for head in policy.heads:
        assert (limited[head] is outputs[head]) == (head not in ("policy.1", "policy.2")), head
    actions = policy.sample(limited, np.random.default_rng(1))
    assert [np.unique(actions[:, column]).tolist() for column in (2, 3, 4)] == [[1, 2], [0], [0, 2]]
    found, log_probability, entropy = policy.gradient(limited, actions, ONE, ONE)
    assert not found["policy.1"][:, 0].any()
    assert not found["policy.2"][:, [1, 3, 5]].any()
    assert np.isfinite([*log_probability, *entropy]).all()
