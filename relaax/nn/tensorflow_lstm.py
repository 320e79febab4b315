"""A layer of long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gates of Gers et al. 2000).

i, f, o = sigmoid(...), g = tanh(...) of [x, h] @ kernel + bias;  c' = f c + i g;  h' = o tanh(c').

The gates stand in the order input, forget, candidate, output: kernel [features + cells, 4 * cells], bias [4 * cells].
"""

from __future__ import annotations

from typing import Any

from relaax.nn.tensorflow_loading import tf

Tensor = Any


def lstm(
    x: Tensor, h: Tensor, c: Tensor, restart: Tensor, kernel: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the layer over a rollout.

    Args:
      x: float32 [T, N, F].
      h: float32 [N, C], the output before the first step.
      c: float32 [N, C], the cells before the first step.
      restart: bool [T, N]: an episode starts with x at t, so h and c are zero before it.
      kernel: float32 [F + C, 4 C].
      bias: float32 [4 C].

    Returns:
      The outputs, float32 [T, N, C]; h and c after the last step, float32 [N, C]. TensorFlow derives the gradient.
    """
    features = x.shape[2]
    # One product for all steps: only what depends on the step before has to wait for it.
    given = tf.linalg.matmul(tf.reshape(x, [-1, features]), kernel[:features]) + bias
    given = tf.reshape(given, tf.concat([tf.shape(x)[:2], bias.shape], axis=0))
    given = tf.ensure_shape(given, [x.shape[0], h.shape[0], bias.shape[0]])
    keep = tf.cast(tf.logical_not(restart), tf.float32)[:, :, tf.newaxis]
    keep = tf.ensure_shape(keep, [x.shape[0], h.shape[0], 1])
    steps = tf.shape(x)[0]

    def step(t: Tensor, h: Tensor, c: Tensor, outputs: Tensor) -> tuple[Tensor, ...]:
        gates = given[t] + tf.linalg.matmul(h * keep[t], kernel[features:])
        i, f, g, o = tf.split(gates, 4, axis=-1)
        c = tf.sigmoid(f) * (c * keep[t]) + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        return t + 1, h, c, outputs.write(t, h)

    empty = tf.TensorArray(tf.float32, steps, element_shape=h.shape)
    _, h, c, outputs = tf.while_loop(lambda t, *_: t < steps, step, (0, h, c, empty))
    return outputs.stack(), h, c
