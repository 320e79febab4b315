"""A reference of PPO's loss (Schulman et al. 2017, equations 7 and 9) in TensorFlow and float64, by its derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaax.nn.tensorflow_loading import tf
from support.reference_actor_critic import Memory, Network

LOG_2PI = float(np.log(2 * np.pi))


@dataclass
class Steps:
    """Steps of one environment within one episode, with what was known when it acted. `memory`: before the first."""

    inputs: Sequence[Any]
    actions: Sequence[Any]
    old: Sequence[float]
    """log pi of the actions, by the parameters that chose them."""
    values: Sequence[float]
    advantages: Sequence[float]
    memory: Memory | None = None


def advantages_of(
    rewards: Sequence[float], discounts: Sequence[float], values: Sequence[float], lambda_: float
) -> list[float]:
    """Return generalized advantage estimates as sums (Schulman et al. 2016, equation 16). `values`: one more."""
    deltas = [r + d * values[t + 1] - values[t] for t, (r, d) in enumerate(zip(rewards, discounts, strict=True))]
    found = []
    for t in range(len(deltas)):
        factor, total = 1.0, 0.0
        for k in range(t, len(deltas)):
            total += factor * deltas[k]
            factor *= lambda_ * discounts[k]
        found.append(total)
    return found


def likelihood(outputs: dict[str, Any], action: Any) -> tuple[Any, Any]:
    """Return log pi(action) and the entropy for the outputs of one input, as tensors."""
    if "policy" in outputs:
        log_pi = tf.nn.log_softmax(outputs["policy"])
        return log_pi[int(action)], -tf.reduce_sum(tf.exp(log_pi) * log_pi)
    mean, variance = outputs["mean"], tf.math.softplus(outputs["variance"]) + 1e-6
    log_pi = -0.5 * tf.reduce_sum((action - mean) ** 2 / variance + tf.math.log(variance) + LOG_2PI)
    return log_pi, 0.5 * tf.reduce_sum(tf.math.log(variance) + LOG_2PI + 1)


def run(network: Network, parts: Sequence[Any], inputs: Sequence[Any], memory: Memory | None) -> list[dict[str, Any]]:
    """Return the outputs for each input of a sequence, as tensors."""
    states = [[tf.constant(x) for x in state] for state in memory or network.nothing()]
    every = []
    for x in inputs:
        outputs, following = {}, iter(parts)
        for index, heads in enumerate(network.trunks):
            y = tf.tanh(tf.linalg.matvec(next(following), tf.constant(x, tf.float64), True) + next(following))
            if network.cells:
                h, c = states[index]
                gates = tf.linalg.matvec(next(following), tf.concat([y, h], 0), True) + next(following)
                i, f, g, o = tf.split(gates, 4)
                c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
                y = tf.sigmoid(o) * tf.tanh(c)
                states[index] = [y, c]
            for head in heads:
                outputs[head] = tf.linalg.matvec(next(following), y, True) + next(following)
        every.append(outputs)
    return every


def ppo_gradient(
    network: Network,
    theta: np.ndarray,
    sequences: Sequence[Steps],
    *,
    clip: float,
    value_weight: float,
    beta: float,
    normalize: bool = False,
    value_clip: float | None = None,
) -> tuple[np.ndarray, dict[str, float]]:
    """Return the gradient [P] of the loss over one minibatch, and the metrics."""
    flat = tf.Variable(theta.astype(np.float64))
    with tf.GradientTape() as tape:
        sizes = [int(np.prod(shape)) for shape in network.shapes]
        parts = [tf.reshape(p, shape) for p, shape in zip(tf.split(flat, sizes), network.shapes, strict=True)]
        terms, values = [], []
        for steps in sequences:
            outputs = run(network, parts, steps.inputs, steps.memory)
            terms += [likelihood(out, action) for out, action in zip(outputs, steps.actions, strict=True)]
            values += [out["value"][0] for out in outputs]
        log_pi, entropy = (tf.stack(column) for column in zip(*terms, strict=True))
        values = tf.stack(values)
        old, old_values, advantages = (
            np.concatenate([getattr(steps, name) for steps in sequences]) for name in ("old", "values", "advantages")
        )
        targets = old_values + advantages
        if normalize:
            advantages = (advantages - advantages.mean()) / advantages.std()
        ratio = tf.exp(log_pi - old)
        surrogate = tf.minimum(ratio * advantages, tf.clip_by_value(ratio, 1 - clip, 1 + clip) * advantages)
        squares = (values - targets) ** 2
        if value_clip is not None:
            near = old_values + tf.clip_by_value(values - old_values, -value_clip, value_clip)
            squares = tf.maximum(squares, (near - targets) ** 2)
        means = [tf.reduce_mean(term) for term in (-surrogate, squares, entropy)]
        loss = means[0] + value_weight * means[1] - beta * means[2]
    metrics = dict(zip(("loss/policy", "loss/value", "loss/entropy"), map(float, means), strict=True))
    metrics["policy/kl"] = float(tf.reduce_mean(ratio - 1 - tf.math.log(ratio)))
    metrics["policy/clipped"] = float(np.mean(np.abs(ratio.numpy() - 1) > clip))
    return tape.gradient(loss, flat).numpy(), metrics
