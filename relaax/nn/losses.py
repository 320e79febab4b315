"""Losses of actor-critic algorithms: pure TensorFlow functions, one number per example.

Reductions are the caller's, so that a mask or a weight can stand between.
"""

from __future__ import annotations

from typing import Any

from relaax.nn.tensorflow_loading import tf

Tensor = Any
"""TensorFlow ships no types; shapes and dtypes stand in the docstrings."""


def policy_gradient_loss(log_probability_t: Tensor, advantage_t: Tensor) -> Tensor:
    """-log pi(a_t | s_t) * advantage_t, whose gradient is the policy gradient (Mnih et al. 2016, Algorithm S3).

    No gradient flows through the advantage.

    Args:
      log_probability_t: float32 [B], of the actions taken.
      advantage_t: float32 [B].

    Returns:
      float32 [B].
    """
    log_probability_t.shape.assert_has_rank(1)
    advantage_t.shape.assert_has_rank(1)
    return -log_probability_t * tf.stop_gradient(advantage_t)


def categorical_entropy(logits_t: Tensor) -> Tensor:
    """H(pi) = -sum_a pi(a) log pi(a), in nats.

    Args:
      logits_t: float32 [B, A].

    Returns:
      float32 [B], between 0 and log A.
    """
    logits_t.shape.assert_has_rank(2)
    log_probabilities = tf.nn.log_softmax(logits_t)
    return -tf.reduce_sum(tf.exp(log_probabilities) * log_probabilities, axis=1)


def value_loss(v_t: Tensor, target_t: Tensor) -> Tensor:
    """(target_t - v_t)^2; no gradient flows through the target (Mnih et al. 2016, Algorithm S3).

    Args:
      v_t: float32 [B], predictions.
      target_t: float32 [B], returns.

    Returns:
      float32 [B].
    """
    v_t.shape.assert_has_rank(1)
    target_t.shape.assert_has_rank(1)
    return tf.square(tf.stop_gradient(target_t) - v_t)


def clip_by_norm(gradient: Tensor, limit: float | None) -> tuple[Tensor, Tensor]:
    """A flat gradient scaled down to the norm `limit` where it is longer, and its norm before (Pascanu et al. 2013).

    Args:
      gradient: float32 [P].
      limit: greater than 0, or None to leave the gradient as it is.

    Returns:
      float32 [P] and float32 [].
    """
    gradient.shape.assert_has_rank(1)
    norm = tf.norm(gradient)
    if limit is None:
        return gradient, norm
    return gradient * (limit / tf.maximum(norm, limit)), norm
