"""A reference of algorithm S3 of Mnih et al. 2016 in numpy and float64: slow, obvious, and without shared code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Forward = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Parameters [P] and inputs [B, ...] -> logits [B, A] and values [B]."""


def cut(theta: np.ndarray, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Split the flat vector into arrays of these shapes."""
    parts, start = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        parts.append(theta[start : start + size].reshape(shape))
        start += size
    assert start == theta.size
    return parts


def dense_network(features: int, hidden: int, actions: int) -> Forward:
    """Return a network with one hidden layer of tanh."""

    def forward(theta: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        kernel, bias, policy, policy_bias, value, value_bias = cut(
            theta, (features, hidden), (hidden,), (hidden, actions), (actions,), (hidden, 1), (1,)
        )
        h = np.tanh(x @ kernel + bias)
        return h @ policy + policy_bias, (h @ value + value_bias)[:, 0]

    return forward


def pixel_network(pixels: int, actions: int) -> Forward:
    """Return a linear network of pixels, which are scaled from 0..255 to 0..1."""

    def forward(theta: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        policy, policy_bias, value, value_bias = cut(theta, (pixels, actions), (actions,), (pixels, 1), (1,))
        x = x.reshape(len(x), -1) / 255.0
        return x @ policy + policy_bias, (x @ value + value_bias)[:, 0]

    return forward


def convolution_network(side: int, channels: int, filters: int, kernel: int, stride: int, actions: int) -> Forward:
    """Return a network with one convolution with relu on square images of bytes, and linear heads."""
    places = (side - kernel) // stride + 1
    width = places * places * filters

    def forward(theta: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights, bias, policy, policy_bias, value, value_bias = cut(
            theta, (kernel, kernel, channels, filters), (filters,), (width, actions), (actions,), (width, 1), (1,)
        )
        h = np.zeros((len(x), places, places, filters))
        for i in range(places):
            for j in range(places):
                patch = x[:, i * stride : i * stride + kernel, j * stride : j * stride + kernel] / 255.0
                h[:, i, j] = np.maximum(np.tensordot(patch, weights, axes=3) + bias, 0)
        h = h.reshape(len(x), -1)
        return h @ policy + policy_bias, (h @ value + value_bias)[:, 0]

    return forward


def a3c_gradient(
    forward: Forward,
    theta: np.ndarray,
    inputs: np.ndarray,
    actions: Sequence[int],
    returns: Sequence[float],
    *,
    environments: int,
    value_weight: float,
    beta: float,
) -> np.ndarray:
    """Return the gradient [P] of the loss over B examples, by central differences. The advantage is a constant."""
    theta = theta.astype(np.float64)
    advantage = np.array(returns) - forward(theta, inputs)[1]

    def loss(at: np.ndarray) -> float:
        logits, values = forward(at, inputs)
        total = 0.0
        for row in range(len(inputs)):
            pi = np.exp(logits[row]) / np.exp(logits[row]).sum()
            total -= np.log(pi[actions[row]]) * advantage[row]
            total += value_weight * (returns[row] - values[row]) ** 2
            total += beta * (pi * np.log(pi)).sum()
        return total / environments

    step = 1e-6
    moves = step * np.eye(theta.size)
    return np.array([(loss(theta + move) - loss(theta - move)) / (2 * step) for move in moves])
