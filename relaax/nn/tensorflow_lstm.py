"""A layer of long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gates of Gers et al. 2000).

i, f, o = sigmoid(...), g = tanh(...) of [x, h] @ kernel + bias;  c' = f c + i g;  h' = o tanh(c').

The gates stand in the order input, forget, candidate, output: kernel [features + cells, 4 * cells], bias [4 * cells].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relaax.nn.tensorflow_loading import tf

Tensor = Any


def lstm(
    x: Tensor, h: Tensor, c: Tensor, restart: Tensor, kernel: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The layer over a rollout.

    Args:
      x: float32 [T, N, F].
      h: float32 [N, C], the output before the first step.
      c: float32 [N, C], the cells before the first step.
      restart: bool [T, N]: an episode starts with x at t, so h and c are zero before it.
      kernel: float32 [F + C, 4 C].
      bias: float32 [4 C].

    Returns:
      The outputs, float32 [T, N, C]; h and c after the last step, float32 [N, C].
    """
    features = x.shape[2]
    # One product for all steps: only what depends on the step before has to wait for it.
    given = tf.linalg.matmul(tf.reshape(x, [-1, features]), kernel[:features]) + bias
    given = tf.reshape(given, tf.concat([tf.shape(x)[:2], bias.shape], axis=0))
    given = tf.ensure_shape(given, [x.shape[0], h.shape[0], bias.shape[0]])
    keep = tf.cast(tf.logical_not(restart), tf.float32)[:, :, tf.newaxis]
    keep = tf.ensure_shape(keep, [x.shape[0], h.shape[0], 1])
    outputs, h, c = tf.custom_gradient(_recurrence)(given, keep, kernel[features:], h, c)
    return outputs, h, c


def _recurrence(
    given: Tensor, keep: Tensor, kernel: Tensor, h: Tensor, c: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor], Callable[..., tuple[Tensor, ...]]]:
    """The steps one after the other, and their gradient.

    The gradient is written out because TensorFlow's own adds up an array as large as the kernel at each step: over
    whole episodes that takes several times as long. Here activations and the kernel's gradient are products over
    all steps at once.

    Args:
      given: float32 [T, N, 4 C], the gates' share of the input.
      keep: float32 [T, N, 1], 0 if an episode starts.
      kernel: float32 [C, 4 C].
      h: float32 [N, C].
      c: float32 [N, C].

    Returns:
      `lstm`'s results; the function from their gradients to those of the arguments.
    """
    steps = tf.shape(given)[0]

    def forwards(t: Tensor, h: Tensor, c: Tensor, hs: Tensor, cs: Tensor) -> tuple[Tensor, ...]:
        i, f, g, o = _activations(given[t] + tf.linalg.matmul(h * keep[t], kernel))
        c = f * (c * keep[t]) + i * g
        h = o * tf.tanh(c)
        return t + 1, h, c, hs.write(t, h), cs.write(t, c)

    empty = [tf.TensorArray(tf.float32, steps, element_shape=h.shape) for _ in range(2)]
    _, last_h, last_c, *written = tf.while_loop(lambda t, *_: t < steps, forwards, (0, h, c, *empty))
    hs, cs = (array.stack() for array in written)

    def gradient(dhs: Tensor, dh: Tensor, dc: Tensor) -> tuple[Tensor, ...]:
        before_h = tf.concat([h[tf.newaxis], hs[:-1]], axis=0) * keep
        before_c = tf.concat([c[tf.newaxis], cs[:-1]], axis=0) * keep
        i, f, g, o = _activations(given + tf.tensordot(before_h, kernel, 1))
        squashed = tf.tanh(cs)
        c_of_h = o * (1 - tf.square(squashed))
        forget = f * keep
        # Slopes of the cells by i, f and g and of the output by o, each times the gate's own.
        slopes = [g * i * (1 - i), before_c * f * (1 - f), i * (1 - tf.square(g)), squashed * o * (1 - o)]
        slope = tf.concat(slopes, axis=2)

        def backwards(t: Tensor, dh: Tensor, dc: Tensor, gates: Tensor) -> tuple[Tensor, ...]:
            dh += dhs[t]
            dc += dh * c_of_h[t]
            gate = tf.concat([dc, dc, dc, dh], axis=1) * slope[t]
            dh = tf.linalg.matmul(gate, kernel, transpose_b=True) * keep[t]
            return t - 1, dh, dc * forget[t], gates.write(t, gate)

        empty = tf.TensorArray(tf.float32, steps, element_shape=given.shape[1:])
        _, dh, dc, written = tf.while_loop(lambda t, *_: t >= 0, backwards, (steps - 1, dh, dc, empty))
        gates = written.stack()
        return gates, None, tf.tensordot(before_h, gates, [[0, 1], [0, 1]]), dh, dc

    return (hs, last_h, last_c), gradient


def _activations(gates: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Input, forget, candidate and output of [..., 4 C]."""
    i, f, g, o = tf.split(gates, 4, axis=-1)
    return tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
