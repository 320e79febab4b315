"""Gradients of TensorFlow functions, and finite differences to compare them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relaax.nn.tensorflow_loading import tf


def gradient_of(loss: Callable[[Any], Any], at: np.ndarray) -> np.ndarray:
    """Return the gradient of the sum of `loss`; zeros if the loss does not depend on `at`."""
    variable = tf.constant(at)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        total = tf.reduce_sum(loss(variable))
    found = tape.gradient(total, variable)
    return np.zeros_like(at) if found is None else found.numpy()


def finite_differences(loss: Callable[[Any], Any], at: np.ndarray, step: float = 1e-2) -> np.ndarray:
    """Return central differences of the sum of `loss`. float32 needs a large `step`."""
    slopes = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        ends = []
        for sign in (1, -1):
            moved = at.copy()
            moved[index] += sign * step
            ends.append(float(tf.reduce_sum(loss(tf.constant(moved)))))
        slopes[index] = (ends[0] - ends[1]) / (2 * step)
    return slopes
