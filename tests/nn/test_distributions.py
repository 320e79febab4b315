from __future__ import annotations

import math

import numpy as np
import pytest

from relaax.nn.distributions import (
    Bernoulli,
    Categorical,
    Composite,
    Distribution,
    Gaussian,
    MultiCategorical,
    inverse_softplus,
)
from relaax.nn.tensorflow_loading import tf
from support.slopes import expect_slopes

LOG_3 = math.log(3.0)
# softmax([log 3, 0]) = [3/4, 1/4].
LOGITS = np.array([[LOG_3, 0.0]], np.float32)


@pytest.mark.parametrize(
    "policy",
    [
        Categorical(18),
        MultiCategorical([3, 4]),
        Bernoulli(3),
        Composite([Categorical(4), Bernoulli(2)], [0.5, 2.0]),
    ],
)
def test_equal_probabilities_have_the_maximum_entropy(policy: Distribution) -> None:
    outputs = {head: np.zeros((1, width), np.float32) for head, width in policy.heads.items()}
    zero, action = np.zeros(1, np.float32), policy.mode(outputs)
    assert policy.gradient(outputs, action, zero, zero)[2] == pytest.approx(policy.max_entropy)
    assert math.isinf(Gaussian(1).max_entropy)


def row(*numbers: float) -> np.ndarray:
    return np.array([numbers], np.float32)


def gaussian_outputs(mean: np.ndarray, variance: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs of a network for this mean and variance: the inverse of softplus is log(exp(v) - 1)."""
    return {"mean": mean, "variance": np.log(np.expm1(variance)).astype(np.float32)}


def log_probability(policy: Distribution, outputs: dict[str, np.ndarray], actions: np.ndarray) -> np.ndarray:
    """log pi as used for acting, after a check that learning uses the same."""
    found = policy.log_probability(outputs, actions)
    nothing = np.zeros(len(actions), np.float32)
    np.testing.assert_allclose(policy.gradient(outputs, actions, nothing, nothing)[1], found, rtol=1e-4, atol=1e-4)
    return found


def entropy(policy: Distribution, outputs: dict[str, np.ndarray]) -> np.ndarray:
    nothing = np.zeros(len(next(iter(outputs.values()))), np.float32)
    actions = np.zeros((len(nothing), *policy.action_shape), policy.action_dtype)
    return policy.gradient(outputs, actions, nothing, nothing)[2]


def slopes(policy: Distribution, outputs: dict[str, np.ndarray], actions: np.ndarray, of: str) -> dict[str, np.ndarray]:
    """The derivatives of the log-probability or of the entropy by the outputs."""
    weights = [np.full(len(actions), of == term, np.float32) for term in ("log_probability", "entropy")]
    return policy.gradient(outputs, actions, *weights)[0]


def test_categorical_log_probability_matches_hand_calculation() -> None:
    found = log_probability(Categorical(2), {"policy": np.repeat(LOGITS, 2, axis=0)}, np.array([0, 1]))
    np.testing.assert_allclose(found, [math.log(3 / 4), math.log(1 / 4)], rtol=1e-6)


def test_categorical_policy_gradient_matches_hand_calculation() -> None:
    # d/dz of -A log softmax(z)[a] is A (pi - onehot(a)):  2 * ([3/4, 1/4] - [0, 1]) = [1.5, -1.5].
    two, nothing = np.array([2], np.float32), np.zeros(1, np.float32)
    slope = Categorical(2).gradient({"policy": LOGITS}, np.array([1]), -two, nothing)[0]["policy"]
    np.testing.assert_allclose(slope, [[1.5, -1.5]], rtol=1e-6)
    moved = np.exp(LOGITS - 0.1 * slope)
    assert moved[0, 1] / moved.sum() > 0.25  # an action with a positive advantage becomes more probable


def test_categorical_entropy_matches_hand_calculation() -> None:
    # H([3/4, 1/4]) = log 4 - 3/4 log 3;  H(uniform over 2) = log 2.
    found = entropy(Categorical(2), {"policy": np.array([[LOG_3, 0.0], [7.0, 7.0]], np.float32)})
    np.testing.assert_allclose(found, [math.log(4) - 0.75 * LOG_3, math.log(2)], rtol=1e-6)


def test_categorical_entropy_gradient_matches_calculation() -> None:
    # dH/dz_i = -pi_i (log pi_i + H). With pi = [3/4, 1/4]: -3/4 (log 3/4 + log 4 - 3/4 log 3) = -3/16 log 3.
    found = slopes(Categorical(2), {"policy": LOGITS}, np.array([0]), "entropy")["policy"]
    np.testing.assert_allclose(found, [[-3 / 16 * LOG_3, 3 / 16 * LOG_3]], rtol=1e-5)


def test_categorical_samples_follow_the_probabilities() -> None:
    logits = np.repeat(LOGITS, 40_000, axis=0)
    actions = Categorical(2).sample({"policy": logits}, np.random.default_rng(0))
    # Standard deviation of the mean: sqrt(3/16 / 40000) = 0.0022.
    assert actions.mean() == pytest.approx(0.25, abs=0.01)
    assert (actions.shape, actions.dtype) == ((40_000,), np.int64)


def test_categorical_mode_is_the_most_probable_action() -> None:
    actions = Categorical(3).mode({"policy": np.array([[1, 5, 2], [3, -1, 2]], np.float32)})
    assert (actions.tolist(), actions.dtype) == ([1, 0], np.int64)


def test_multi_categorical_matches_hand_calculation() -> None:
    # The first choice has the probabilities 3/4 and 1/4, the second 1/3 each. Both results are sums over the choices.
    policy, outputs = MultiCategorical((2, 3)), {"policy": row(LOG_3, 0, 5, 5, 5)}
    found = log_probability(policy, outputs, np.array([[1, 2]]))
    np.testing.assert_allclose(found, [math.log(1 / 4 * 1 / 3)], rtol=1e-6)
    np.testing.assert_allclose(entropy(policy, outputs), [math.log(4) - 0.75 * LOG_3 + LOG_3], rtol=1e-6)
    # d log pi(a) / dz = onehot(a) - pi, of each choice by its own logits.
    slope = slopes(policy, outputs, np.array([[1, 2]]), "log_probability")["policy"]
    np.testing.assert_allclose(slope, [[-3 / 4, 3 / 4, -1 / 3, -1 / 3, 2 / 3]], rtol=1e-6)


def test_multi_categorical_samples_choices_independently() -> None:
    policy = MultiCategorical((2, 3))
    outputs = {"policy": np.repeat(row(LOG_3, 0, 0, math.log(2), 0), 40_000, axis=0)}
    actions = policy.sample(outputs, np.random.default_rng(0))
    assert (actions.shape, actions.dtype) == ((40_000, 2), np.int64)
    first, second = (np.bincount(actions[:, k]) / 40_000 for k in (0, 1))
    np.testing.assert_allclose(first, [3 / 4, 1 / 4], atol=0.01)
    np.testing.assert_allclose(second, [1 / 4, 1 / 2, 1 / 4], atol=0.01)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.03
    mode = policy.mode(outputs)
    assert (mode[0].tolist(), mode.shape, mode.dtype) == ([0, 1], (40_000, 2), np.int64)


def test_bernoulli_matches_hand_calculation() -> None:
    # sigmoid(log 3) = 3/4, sigmoid(0) = 1/2. The bits are 0 and 1.
    policy, outputs = Bernoulli(2), {"policy": row(LOG_3, 0)}
    action = np.array([[0, 1]], np.int8)
    np.testing.assert_allclose(log_probability(policy, outputs, action), [math.log(1 / 4 * 1 / 2)], rtol=1e-6)
    expected = math.log(4) - 0.75 * LOG_3 + math.log(2)
    np.testing.assert_allclose(entropy(policy, outputs), [expected], rtol=1e-6)
    # d log pi(a) / dz = a - p;  dH / dz = -z p (1 - p).
    np.testing.assert_allclose(slopes(policy, outputs, action, "log_probability")["policy"], [[-3 / 4, 1 / 2]])
    np.testing.assert_allclose(slopes(policy, outputs, action, "entropy")["policy"], [[-LOG_3 * 3 / 16, 0]], rtol=1e-5)


def test_bernoulli_samples_follow_the_probabilities() -> None:
    policy, outputs = Bernoulli(2), {"policy": np.repeat(row(LOG_3, -LOG_3), 40_000, axis=0)}
    actions = policy.sample(outputs, np.random.default_rng(0))
    assert (actions.shape, actions.dtype) == ((40_000, 2), np.int8)
    np.testing.assert_allclose(actions.mean(axis=0), [3 / 4, 1 / 4], atol=0.01)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.03
    mode = policy.mode(outputs)
    assert (mode[0].tolist(), mode.dtype) == ([1, 0], np.int8)


def test_bernoulli_is_finite_for_extreme_outputs() -> None:
    policy, outputs = Bernoulli(2), {"policy": row(1e4, -1e4)}
    assert policy.sample(outputs, np.random.default_rng(0)).tolist() == [[1, 0]]
    np.testing.assert_allclose(log_probability(policy, outputs, np.array([[1, 1]], np.int8)), [-1e4])
    assert entropy(policy, outputs) == pytest.approx([0])
    for term in ("entropy", "log_probability"):
        assert np.isfinite(slopes(policy, outputs, np.array([[0, 1]], np.int8), term)["policy"]).all()


SEVERAL = [MultiCategorical((2, 3, 4)), MultiCategorical((5,)), Bernoulli(4)]


@pytest.mark.parametrize("policy", SEVERAL, ids=["choices", "one choice", "bits"])
def test_gradient_of_several_choices_equals_tensorflow(policy: Distribution) -> None:
    outputs, actions = outputs_of(policy, 3), actions_of(policy, 3)
    by_log_probability, by_entropy = (np.random.default_rng(8).normal(size=(2, 3))).astype(np.float32)
    logits = tf.Variable(outputs["policy"])
    with tf.GradientTape() as tape:
        if isinstance(policy, MultiCategorical):
            parts = [tf.nn.log_softmax(part) for part in tf.split(logits, policy.choices, axis=1)]
            taken = [tf.gather(part, actions[:, k], batch_dims=1) for k, part in enumerate(parts)]
            log_probabilities = tf.add_n(taken)
            entropies = tf.add_n([-tf.reduce_sum(tf.exp(part) * part, axis=1) for part in parts])
        else:
            one, zero = -tf.nn.softplus(-logits), -tf.nn.softplus(logits)  # log p and log (1 - p)
            log_probabilities = tf.reduce_sum(tf.where(actions == 1, one, zero), axis=1)
            entropies = -tf.reduce_sum(tf.exp(one) * one + tf.exp(zero) * zero, axis=1)
        loss = tf.reduce_sum(log_probabilities * by_log_probability + entropies * by_entropy)
    found, log_probability, entropy = policy.gradient(outputs, actions, by_log_probability, by_entropy)
    np.testing.assert_allclose(found["policy"], tape.gradient(loss, logits), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(log_probability, log_probabilities, rtol=1e-5)
    np.testing.assert_allclose(entropy, entropies, rtol=1e-5)


def test_gaussian_log_probability_matches_hand_calculation() -> None:
    # (a - mean)^2 / variance is 4 / 1 and 9 / 4; log(2 pi v) is log(2 pi) and log(8 pi).
    outputs = gaussian_outputs(row(1, 0), row(1, 4))
    found = log_probability(Gaussian(2), outputs, row(3, -3))
    expected = -0.5 * (4 + 9 / 4 + math.log(2 * math.pi) + math.log(8 * math.pi))
    np.testing.assert_allclose(found, [expected], rtol=1e-5)


def test_spherical_variance_counts_once_per_number() -> None:
    # (1 + 4 + 9) / 2 + 3 log(4 pi).
    outputs = gaussian_outputs(row(0, 0, 0), row(2))
    found = log_probability(Gaussian(3, spherical=True), outputs, row(1, 2, -3))
    np.testing.assert_allclose(found, [-0.5 * (7 + 3 * math.log(4 * math.pi))], rtol=1e-5)


def test_gaussian_entropy_matches_hand_calculation() -> None:
    # 1/2 log(2 pi e v): 1.4189 for v = 1, more by log 2 / 2 for v = 2, negative for v = 0.01.
    unit = 0.5 * math.log(2 * math.pi * math.e)
    diagonal = entropy(Gaussian(2), gaussian_outputs(row(5, 6), row(1, 2)))
    np.testing.assert_allclose(diagonal, [2 * unit + 0.5 * math.log(2)], rtol=1e-5)
    spherical = entropy(Gaussian(3, spherical=True), gaussian_outputs(row(5, 6, 7), row(2)))
    np.testing.assert_allclose(spherical, [3 * (unit + 0.5 * math.log(2))], rtol=1e-5)
    narrow = entropy(Gaussian(1), gaussian_outputs(row(0), row(0.01)))
    np.testing.assert_allclose(narrow, [unit + 0.5 * math.log(0.01)], rtol=1e-3)


def test_gaussian_gradients_match_hand_calculation() -> None:
    # d log pi / d mean = (a - mean) / v = 2 / 4.
    # d log pi / d v = ((a - mean)^2 / v - 1) / (2 v) = (1 - 1) / 8 = 0 for a - mean = 2; (4 - 1) / 8 for 4.
    # d softplus(x) / dx = 1 - exp(-softplus(x)) = 1 - exp(-4);  dH / dv = 1 / (2 v).
    policy, slope = Gaussian(1), 1 - math.exp(-4)
    outputs = gaussian_outputs(row(1), row(4))
    of_mean = slopes(policy, outputs, row(3), "log_probability")["mean"]
    np.testing.assert_allclose(of_mean, [[0.5]], rtol=1e-5)
    for action, expected in ((3, 0.0), (5, 3 / 8 * slope)):
        of_variance = slopes(policy, outputs, row(action), "log_probability")["variance"]
        np.testing.assert_allclose(of_variance, [[expected]], atol=1e-5)
    of_entropy = slopes(policy, outputs, row(3), "entropy")["variance"]
    np.testing.assert_allclose(of_entropy, [[slope / 8]], rtol=1e-5)


@pytest.mark.parametrize("spherical", [False, True])
def test_gaussian_samples_follow_mean_and_variance(spherical: bool) -> None:
    policy = Gaussian(2, spherical)
    outputs = gaussian_outputs(row(3, -1), row(4) if spherical else row(4, 0.25))
    many = {head: np.repeat(output, 40_000, axis=0) for head, output in outputs.items()}
    actions = policy.sample(many, np.random.default_rng(1))
    assert (actions.shape, actions.dtype) == ((40_000, 2), np.float32)
    # Standard deviation of the mean: 2 / 200; of the variance: 4 sqrt(2) / 200.
    np.testing.assert_allclose(actions.mean(axis=0), [3, -1], atol=0.05)
    np.testing.assert_allclose(actions.var(axis=0), [4, 4 if spherical else 0.25], rtol=0.05)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.03


def test_gaussian_mode_is_the_mean() -> None:
    actions = Gaussian(2).mode({"mean": row(3, -1), "variance": row(100, 100)})
    assert (actions.tolist(), actions.dtype) == ([[3, -1]], np.float32)


@pytest.mark.parametrize("extreme", [-1e4, 1e4])
def test_gaussian_is_finite_for_extreme_outputs(extreme: float) -> None:
    policy = Gaussian(1)
    outputs = {"mean": row(2), "variance": row(extreme)}
    action = policy.sample(outputs, np.random.default_rng(0))
    # softplus(x) is x for large x, and 0 for very negative x.
    variance = max(extreme, 0.0) + 1e-6
    found = log_probability(policy, outputs, row(2))
    np.testing.assert_allclose(found, [-0.5 * math.log(2 * math.pi * variance)], rtol=1e-5)
    assert abs(action.item() - 2) < 6 * math.sqrt(variance)
    for term in ("entropy", "log_probability"):
        assert np.isfinite(slopes(policy, outputs, action, term)["variance"]).all()


@pytest.mark.parametrize("variance", [1e-4, 0.5, 1.0, 20.0, 1e4])
def test_initial_variance_is_the_requested_one(variance: float) -> None:
    bias = inverse_softplus(variance)
    found = entropy(Gaussian(1), {"mean": row(0), "variance": row(bias)})
    np.testing.assert_allclose(found, [0.5 * math.log(2 * math.pi * math.e * variance)], rtol=1e-4)


def test_inverse_softplus_of_log_2_is_0() -> None:
    assert inverse_softplus(math.log(2.0) + 1e-6) == pytest.approx(0.0, abs=1e-12)  # softplus(0) = log 2


@pytest.mark.parametrize("variance", [0.0, -1.0, 1e-6, math.inf, math.nan])
def test_invalid_variance_is_refused(variance: float) -> None:
    with pytest.raises(ValueError, match=rf"a variance must be greater than 1e-06, not {variance}; use"):
        inverse_softplus(variance)


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("policy", [Categorical(3), Gaussian(2), Gaussian(2, spherical=True), *SEVERAL])
def test_log_probability_is_the_same_for_acting_and_learning(policy: Distribution, scale: float) -> None:
    rng = np.random.default_rng(3)
    outputs = {head: (scale * rng.normal(size=(5, n))).astype(np.float32) for head, n in policy.heads.items()}
    assert log_probability(policy, outputs, policy.sample(outputs, rng)).shape == (5,)


def test_distributions_declare_heads_and_action_shapes() -> None:
    assert (Categorical(4).heads, Categorical(4).action_shape) == ({"policy": 4}, ())
    assert (Gaussian(3).heads, Gaussian(3).action_shape) == ({"mean": 3, "variance": 3}, (3,))
    assert Gaussian(3, spherical=True).heads == {"mean": 3, "variance": 1}
    assert (MultiCategorical((2, 3)).heads, MultiCategorical((2, 3)).action_shape) == ({"policy": 5}, (2,))
    assert (Bernoulli(3).heads, Bernoulli(3).action_shape) == ({"policy": 3}, (3,))


def test_log_probability_and_entropy_are_one_per_example() -> None:
    for policy in (Categorical(3), Gaussian(3), Gaussian(3, spherical=True), *SEVERAL):
        outputs = {head: np.zeros((5, width), np.float32) for head, width in policy.heads.items()}
        actions = policy.sample(outputs, np.random.default_rng(0))
        assert (actions.shape, actions.dtype) == ((5, *policy.action_shape), policy.action_dtype)
        assert log_probability(policy, outputs, actions).shape == (5,)
        assert entropy(policy, outputs).shape == (5,)


def outputs_of(policy: Distribution, count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(6)
    return {head: rng.normal(size=(count, width)).astype(np.float32) for head, width in policy.heads.items()}


def actions_of(policy: Distribution, count: int) -> np.ndarray:
    nothing = {head: np.zeros((count, width), np.float32) for head, width in policy.heads.items()}
    return policy.sample(nothing, np.random.default_rng(7))


POLICIES = [Categorical(2), Categorical(18), Gaussian(1), Gaussian(3), Gaussian(3, spherical=True), *SEVERAL]
NAMES = ["two", "many", "one number", "diagonal", "spherical", "choices", "one choice", "bits"]


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
def test_the_gradient_is_the_slope_of_the_loss(policy: Distribution) -> None:
    outputs, actions = outputs_of(policy, 2), actions_of(policy, 2)
    by_log_probability, by_entropy = np.array([-0.7, 1.3], np.float32), np.array([-0.2, -0.1], np.float32)

    def loss(given: dict[str, np.ndarray]) -> float:
        """Return the loss by the definitions, in double precision."""
        entropy: np.ndarray
        if isinstance(policy, Categorical):
            p = np.exp(given["policy"]) / np.exp(given["policy"]).sum(axis=1, keepdims=True)
            log_probability, entropy = np.log(p[[0, 1], actions]), -(p * np.log(p)).sum(axis=1)
        elif isinstance(policy, MultiCategorical):
            log_probability, entropy = np.zeros(2), np.zeros(2)
            for k, z in enumerate(np.split(given["policy"], np.cumsum(policy.choices)[:-1], axis=1)):
                p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
                log_probability += np.log(p[[0, 1], actions[:, k]])
                entropy -= (p * np.log(p)).sum(axis=1)
        elif isinstance(policy, Bernoulli):
            p = 1 / (1 + np.exp(-given["policy"]))
            log_probability = np.log(np.where(actions == 1, p, 1 - p)).sum(axis=1)
            entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p)).sum(axis=1)
        else:
            variance = np.broadcast_to(np.log1p(np.exp(given["variance"])) + 1e-6, given["mean"].shape)
            terms = (actions - given["mean"]) ** 2 / variance + np.log(2 * math.pi * variance)
            log_probability = -0.5 * terms.sum(axis=1)
            entropy = 0.5 * np.log(2 * math.pi * math.e * variance).sum(axis=1)
        return float((log_probability * by_log_probability + by_entropy * entropy).sum())

    found, _, _ = policy.gradient(outputs, actions, by_log_probability, by_entropy)
    expect_slopes(found, outputs, loss)


def test_the_gradient_is_finite_where_the_policy_is_certain() -> None:
    outputs = {"policy": np.array([[1e4, 0, -1e4]], np.float32)}
    for action in range(3):
        one = np.ones(1, np.float32)
        found, log_probability, entropy = Categorical(3).gradient(outputs, np.array([action]), one, one)
        assert np.isfinite(found["policy"]).all() and np.isfinite(log_probability).all()
        assert entropy[0] == pytest.approx(0)
