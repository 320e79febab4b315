"""The clipped loss by hand, and its derivatives against TensorFlow's for all kinds of actions and masks."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import load_algorithm
from relaax.algorithm_base.rollout import Batch
from relaax.nn.distributions import Bernoulli, Categorical, Composite, Distribution, Gaussian, MultiCategorical
from relaax.nn.tensorflow_loading import tf

PPO = load_algorithm("ppo", Path())
ClippedLoss = importlib.import_module(".clipped_loss", PPO.Agent.__module__.rpartition(".")[0]).ClippedLoss
C, BETA, CLIP, LIMIT = 0.25, 0.05, 0.2, 0.3
LOG_2PI = float(np.log(2 * np.pi))


def config(**keys: Any) -> Any:
    defaults = {"path": "ppo", "value_loss_weight": C, "entropy_beta": BETA, "clip": CLIP}
    return PPO.configure(defaults | {"normalize_advantages": False} | keys)


def one_step(ratio: float, advantage: float, value: float = 0.0, **keys: Any) -> tuple[dict[str, np.ndarray], Any]:
    """Return the derivative by the outputs and the metrics. pi(0) is 3/4, the action is 0. V was 1, R is 1 + A."""
    shape = (1, 1)
    batch = Batch(
        inputs=np.zeros((*shape, 1), np.float32),
        actions=np.zeros(shape, np.int64),
        advantages=np.full(shape, advantage, np.float32),
        targets=np.full(shape, 1 + advantage, np.float32),
        mask=np.ones(shape, np.float32),
        state=np.zeros((1, 0), np.float32),
        restart=np.zeros(shape, np.bool_),
        log_probability=np.full(shape, np.log(0.75 / ratio), np.float32),
    )
    loss = ClippedLoss(config(entropy_beta=0, **keys), Categorical(2), batch)
    outputs = {"policy": np.array([[np.log(3), 0]], np.float32), "value": np.array([[value]], np.float32)}
    return loss(outputs, slice(0, 1)), loss.means


@pytest.mark.parametrize(
    ("ratio", "advantage", "derivative", "loss"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, 0.0, -2.4),  # clipped to 1.2
        (0.5, 2.0, -1.0, -1.0),  # a ratio far below 1 is still raised
        (1.5, -2.0, 3.0, 3.0),  # and one far above 1 lowered
        (0.5, -2.0, 0.0, 1.6),  # clipped to 0.8
        (0.9, -2.0, 1.8, 1.8),
    ],
)
def test_clipped_objective_by_hand(ratio: float, advantage: float, derivative: float, loss: float) -> None:
    found, means = one_step(ratio, advantage)
    # The derivative of log pi(0) by the logits is (1/4, -1/4).
    np.testing.assert_allclose(found["policy"], [[derivative / 4, -derivative / 4]], rtol=1e-5, atol=1e-7)
    assert means["loss/policy"] == pytest.approx(loss, rel=1e-5)
    assert means["policy/kl"] == pytest.approx(ratio - 1 - np.log(ratio), abs=1e-6)
    assert means["policy/clipped"] == float(abs(ratio - 1) > CLIP)
    assert means["loss"] == pytest.approx(loss + C * (1 + advantage) ** 2, rel=1e-5)


@pytest.mark.parametrize(
    ("value", "error", "square"),
    [
        # V was 1, R is 3, and V may change by 0.3.
        (0.0, 3.0, 9.0),  # V fell: V clipped to 0.7 has the smaller error
        (1.2, 1.8, 3.24),  # within the bound
        (2.0, 0.0, 2.89),  # V rose beyond 1.3: R - 1.3 is the larger error, and constant
        (9.0, -6.0, 36.0),  # beyond R
    ],
)
def test_value_clipping_by_hand(value: float, error: float, square: float) -> None:
    found, means = one_step(1.0, 2.0, value, value_clipping=LIMIT)
    np.testing.assert_allclose(found["value"], [[-2 * C * error]], rtol=1e-5)
    assert means["loss/value"] == pytest.approx(square, rel=1e-5)


POLICIES: dict[str, Distribution] = {
    "choice": Categorical(3),
    "choices": MultiCategorical((2, 3)),
    "bits": Bernoulli(2),
    "numbers": Gaussian(2),
    "mixed": Composite([Gaussian(2), Categorical(3), MultiCategorical((2, 4)), Bernoulli(2)], [0.5, 2.0, 0.0, 1.0]),
}


def terms(policy: Distribution, outputs: dict[str, Any], actions: np.ndarray, valid: Any) -> tuple[Any, Any]:
    """Return log pi(actions) and the entropies, [B] each, as tensors. `valid`: bool [B, choices] or None."""
    if isinstance(policy, Composite):
        log_pi, entropy, used = 0.0, 0.0, 0
        for i, (part, weight) in enumerate(zip(policy.parts, [0.5, 2.0, 0.0, 1.0], strict=True)):
            own = {head.removesuffix(f".{i}"): z for head, z in outputs.items() if head.endswith(f".{i}")}
            count = sum(part.choices)
            of_part = None if valid is None else valid[:, used : used + count]
            used += count
            one, other = terms(part, own, policy.actions_of(i, actions), of_part if count else None)
            log_pi, entropy = log_pi + one, entropy + weight * other
        return log_pi, entropy
    if isinstance(policy, Gaussian):
        mean, variance = outputs["mean"], tf.math.softplus(outputs["variance"]) + 1e-6
        squares = (actions - mean) ** 2 / variance + tf.math.log(variance) + LOG_2PI
        return -0.5 * tf.reduce_sum(squares, 1), 0.5 * tf.reduce_sum(tf.math.log(variance) + LOG_2PI + 1, 1)
    if isinstance(policy, Bernoulli):
        one = tf.sigmoid(outputs["policy"])
        log_pi = tf.math.log(tf.where(actions == 1, one, 1 - one))
        entropy = -one * tf.math.log(one) - (1 - one) * tf.math.log(1 - one)
        return tf.reduce_sum(log_pi, 1), tf.reduce_sum(entropy, 1)
    log_pi, entropy, start = 0.0, 0.0, 0
    for k, size in enumerate(policy.choices):
        logits = outputs["policy"][:, start : start + size]
        if valid is not None:
            logits = tf.where(valid[:, start : start + size], logits, tf.constant(-1e9, tf.float64))
        start += size
        log_p = tf.nn.log_softmax(logits)
        chosen = actions.reshape(len(actions), -1)[:, k].astype(np.int64)
        log_pi += tf.gather(log_p, chosen, batch_dims=1)
        entropy -= tf.reduce_sum(tf.exp(log_p) * log_p, 1)
    return log_pi, entropy


def batch_of(
    policy: Distribution, count: int, masks: bool, chosen: bool = False
) -> tuple[Batch, dict[str, np.ndarray]]:
    """Return a minibatch [1, count] and outputs of a newer network, for which many steps are clipped.

    `chosen`: whether the client chose about a third of the actions. Then their old likelihood is far off.
    """
    rng, shape = np.random.default_rng(4), (1, count)
    heads = {**policy.heads, "value": 1}
    outputs = {head: rng.normal(size=(count, width)).astype(np.float32) for head, width in heads.items()}
    older = {head: z + rng.normal(0, 0.3, z.shape).astype(np.float32) for head, z in outputs.items()}
    valid = None
    if masks:
        columns = [rng.random((count, choices)) < 0.6 for choices in policy.choices]
        for each in columns:
            each[:, 0] |= ~each.any(axis=1)
        valid = np.concatenate(columns, axis=1)
    actions = policy.sample(policy.masked(older, valid), rng)
    batch = Batch(
        inputs=np.zeros((*shape, 1), np.float32),
        actions=actions.reshape(*shape, *policy.action_shape),
        advantages=rng.normal(1, 2, size=shape).astype(np.float32),
        targets=rng.normal(size=shape).astype(np.float32),
        mask=(rng.random(shape) < 0.8).astype(np.float32),
        state=np.zeros((1, 0), np.float32),
        restart=np.zeros(shape, np.bool_),
        valid=None if valid is None else valid.reshape(*shape, -1),
        log_probability=policy.log_probability(policy.masked(older, valid), actions).astype(np.float32).reshape(shape),
    )
    if chosen:
        taken_over = rng.random(shape) < 0.3
        assert batch.log_probability is not None
        far = np.where(taken_over, np.float32(-50), batch.log_probability)
        batch = replace(batch, chosen=taken_over, log_probability=far)
    return batch, outputs


@pytest.mark.parametrize("chosen", [False, True], ids=["own", "chosen"])
@pytest.mark.parametrize("keys", [{}, {"normalize_advantages": True, "value_clipping": LIMIT}], ids=["plain", "all"])
@pytest.mark.parametrize(
    ("name", "masks"),
    [*((name, False) for name in POLICIES), *((name, True) for name in ("choice", "choices", "mixed"))],
)
def test_derivatives_equal_those_of_tensorflow(name: str, masks: bool, keys: dict[str, Any], chosen: bool) -> None:
    policy, count = POLICIES[name], 60
    batch, outputs = batch_of(policy, count, masks, chosen)
    cloning = 0.4 if chosen else 0.0
    keys = keys | {"cloning_weight": cloning}
    loss = ClippedLoss(config(**keys), policy, batch)
    found: dict[str, list[np.ndarray]] = {head: [] for head in outputs}
    for part in (slice(0, 25), slice(25, count)):  # as an engine does with large minibatches
        for head, rows in loss({head: z[part] for head, z in outputs.items()}, part).items():
            found[head].append(rows)

    used = batch.mask[0] > 0
    taken_over = np.zeros_like(used) if batch.chosen is None else batch.chosen[0]
    own = used & ~taken_over
    advantages, targets, old = (
        a[0].astype(np.float64) for a in (batch.advantages, batch.targets, batch.log_probability)
    )
    old_values = targets - advantages
    if "value_clipping" in keys:
        advantages = (advantages - advantages[own].mean()) / advantages[own].std()
    variables = {head: tf.Variable(z.astype(np.float64)) for head, z in outputs.items()}
    with tf.GradientTape() as tape:
        valid = None if batch.valid is None else batch.valid[0]
        log_pi, entropy = terms(policy, variables, batch.actions[0], valid)
        ratio = tf.exp(log_pi - old)
        objective = tf.minimum(ratio * advantages, tf.clip_by_value(ratio, 1 - CLIP, 1 + CLIP) * advantages)
        values = variables["value"][:, 0]
        squares = (values - targets) ** 2
        if "value_clipping" in keys:
            near = tf.clip_by_value(values, old_values - LIMIT, old_values + LIMIT)
            squares = tf.maximum(squares, (near - targets) ** 2)
        policy_terms = tf.where(taken_over, -cloning * log_pi, -objective - BETA * entropy)
        whole = tf.reduce_mean((policy_terms + C * squares)[used])
    for head, wanted in zip(variables, tape.gradient(whole, list(variables.values())), strict=True):
        np.testing.assert_allclose(np.concatenate(found[head]), wanted, rtol=1e-3, atol=1e-5)
    moved = np.abs(ratio.numpy()[own] - 1) > CLIP
    assert 3 < moved.sum() < own.sum() - 3, "some steps must be clipped, and others not"
    assert loss.means["policy/clipped"] == pytest.approx(moved.sum() / used.sum())
    assert loss.means["loss"] == pytest.approx(float(whole), rel=1e-4, abs=1e-5)


def test_masked_steps_have_no_effect() -> None:
    policy = POLICIES["numbers"]
    batch, outputs = batch_of(policy, 20, False)
    ignored = batch.mask == 0
    assert ignored.any()
    far = replace(
        batch,
        log_probability=np.where(ignored, np.float32(-1e5), batch.log_probability),
        advantages=np.where(ignored, np.float32(1e30), batch.advantages),
    )
    pair = [ClippedLoss(config(), policy, each) for each in (batch, far)]
    found, other = (loss(outputs, slice(0, 20)) for loss in pair)
    for head in found:
        np.testing.assert_array_equal(found[head], other[head])
        assert np.isfinite(found[head]).all()
        assert not found[head][ignored[0]].any()
    assert pair[0].means == pair[1].means


def test_advantage_of_a_single_step_is_not_normalized() -> None:
    plain, _ = one_step(1.0, 2.0)
    normalized, _ = one_step(1.0, 2.0, normalize_advantages=True)
    np.testing.assert_array_equal(plain["policy"], normalized["policy"])
