"""Losses of SAC and DPG in TensorFlow, for dense networks, independent of the learners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from relaax.algorithm_base import Sampled

Tensor = Any


def random_columns(count: int, inputs: int, actions: int) -> dict[str, np.ndarray]:
    """Return the columns of random transitions; the discount is 0.9, or 0 in a third of them."""
    rng = np.random.default_rng(8)
    return {
        "observation": rng.normal(size=(count, inputs)).astype(np.float32),
        "action": rng.uniform(-1, 1, (count, actions)).astype(np.float32),
        "reward": rng.normal(size=count).astype(np.float32),
        "discount": (0.9 * (rng.random(count) < 0.7)).astype(np.float32),
        "next_observation": rng.normal(size=(count, inputs)).astype(np.float32),
    }


def sampled_from(columns: dict[str, np.ndarray], probabilities: np.ndarray | None = None) -> Sampled:
    """Return a batch of all transitions of the columns."""
    count = len(columns["reward"])
    return Sampled(
        columns=columns,
        probabilities=np.full(count, 1 / count) if probabilities is None else probabilities,
        size=count,
        ages=np.zeros(count, np.int64),
        places=np.zeros(count, np.int64),
        keys=np.arange(count, dtype=np.uint64),
        incarnations={0: "here"},
    )


@dataclass
class Nets:
    """The networks of one flat vector: a policy, then critics with the same layers, then further numbers."""

    vector: Tensor
    inputs: int
    actions: int
    policy_layers: tuple[int, ...]
    critic_layers: tuple[int, ...]
    critics: int
    heads: int  # the policy's heads, one number for each action
    activation: Any = tf.nn.relu

    def _take(self, shape: tuple[int, ...]) -> Tensor:
        size = int(np.prod(shape))
        start, self._at = self._at, self._at + size
        return tf.reshape(self.vector[start : start + size], shape)

    def __post_init__(self) -> None:
        self._at = 0
        self._policy = self._layers(self.inputs, self.policy_layers, [self.actions] * self.heads)
        self._critics = [self._layers(self.inputs + self.actions, self.critic_layers, [1]) for _ in range(self.critics)]
        self.rest = self.vector[self._at :]

    def _layers(self, width: int, layers: tuple[int, ...], heads: list[int]) -> list[tuple[Tensor, Tensor]]:
        made = []
        for size in layers:
            made.append((self._take((width, size)), self._take((size,))))
            width = size
        return made + [(self._take((width, size)), self._take((size,))) for size in heads]

    def _run(self, layers: list[tuple[Tensor, Tensor]], heads: int, x: Tensor) -> list[Tensor]:
        for kernel, bias in layers[:-heads]:
            x = self.activation(x @ kernel + bias)
        return [x @ kernel + bias for kernel, bias in layers[-heads:]]

    def policy(self, states: Tensor) -> list[Tensor]:
        return self._run(self._policy, self.heads, states)

    def values(self, states: Tensor, actions: Tensor) -> Tensor:
        """Return the values of all critics, [B, critics]."""
        joined = tf.concat([states, actions], axis=1)
        return tf.concat([self._run(layers, 1, joined)[0] for layers in self._critics], axis=1)


def drawn(nets: Nets, states: Tensor, noise: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return squashed actions and their log-probabilities, by the change of variables."""
    mean, log_std = nets.policy(states)
    std = tf.exp(tf.clip_by_value(log_std, -20, 2))
    u = mean + std * noise
    normal = -0.5 * ((u - mean) / std) ** 2 - tf.math.log(std) - 0.5 * np.log(2 * np.pi)
    actions = tf.tanh(u)
    return actions, tf.reduce_sum(normal - tf.math.log(1 - actions**2), axis=1)


def sac_gradient(
    vector: np.ndarray,
    target: np.ndarray,
    columns: Mapping[str, np.ndarray],
    weights: np.ndarray,
    noises: tuple[np.ndarray, np.ndarray],
    target_entropy: float,
    **sizes: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient of all losses, float64 [P], and the targets [B]. Everything is in double precision."""
    theta, data = tf.constant(vector, tf.float64), {name: tf.constant(c, tf.float64) for name, c in columns.items()}
    with tf.GradientTape() as tape:
        tape.watch(theta)
        nets = Nets(theta, critics=2, heads=2, **sizes)
        slow = Nets(tf.constant(target, tf.float64), critics=2, heads=2, **sizes)
        still = Nets(tf.stop_gradient(theta), critics=2, heads=2, **sizes)
        temperature = tf.exp(nets.rest[0])
        following, log_pi = drawn(still, data["next_observation"], noises[0])
        soft = tf.reduce_min(slow.values(data["next_observation"], following), axis=1) - temperature * log_pi
        targets = tf.stop_gradient(data["reward"] + data["discount"] * soft)
        errors = nets.values(data["observation"], data["action"]) - targets[:, None]
        critic = 0.5 * tf.reduce_sum(weights * tf.reduce_sum(errors**2, axis=1))
        actions, log_pi = drawn(nets, data["observation"], noises[1])
        least = tf.reduce_min(still.values(data["observation"], actions), axis=1)
        policy = tf.reduce_sum(weights * (tf.stop_gradient(temperature) * log_pi - least))
        entropy = -tf.reduce_sum(weights * nets.rest[0] * tf.stop_gradient(log_pi + target_entropy))
        loss = critic + policy + entropy
    return tape.gradient(loss, theta).numpy(), targets.numpy()


def dpg_gradient(
    vector: np.ndarray,
    target: np.ndarray,
    columns: Mapping[str, np.ndarray],
    weights: np.ndarray,
    bound: float,
    **sizes: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient of both losses, float64 [P], and the targets [B]. `bound`: of dQ/da."""
    theta, data = tf.constant(vector, tf.float64), {name: tf.constant(c, tf.float64) for name, c in columns.items()}
    slow = Nets(tf.constant(target, tf.float64), critics=1, heads=1, **sizes)
    following = tf.tanh(slow.policy(data["next_observation"])[0])
    targets = data["reward"] + data["discount"] * slow.values(data["next_observation"], following)[:, 0]
    still = Nets(theta, critics=1, heads=1, **sizes)
    chosen = tf.tanh(still.policy(data["observation"])[0])
    with tf.GradientTape() as tape:
        tape.watch(chosen)
        values = still.values(data["observation"], chosen)
    slopes = tf.clip_by_value(tape.gradient(values, chosen), -bound, bound)
    with tf.GradientTape() as tape:
        tape.watch(theta)
        nets = Nets(theta, critics=1, heads=1, **sizes)
        errors = nets.values(data["observation"], data["action"])[:, 0] - targets
        actions = tf.tanh(nets.policy(data["observation"])[0])
        loss = 0.5 * tf.reduce_sum(weights * errors**2) - tf.reduce_sum(weights[:, None] * slopes * actions)
    return tape.gradient(loss, theta).numpy(), targets.numpy()
