"""A flat float32 vector that TensorFlow's kernels update in place and that can be read without a copy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tensorflow as tf

FlatVector = npt.NDArray[np.float32]


class FlatVariable:
    """A resource variable of shape [size].

    `snapshot` costs no copy: it shares the variable's buffer, and a kernel that is about to write to a shared buffer
    copies it first. So a vector is copied at most once per update, and only where somebody still reads it.
    """

    def __init__(self, values: FlatVector) -> None:
        # A copy: TensorFlow may adopt the memory of an array that it is given. Not on a GPU, where numpy cannot see it.
        with tf.device("/CPU:0"):
            self._variable = tf.Variable(np.array(values, np.float32), trainable=False, dtype=tf.float32)

    @classmethod
    def zeros(cls, size: int) -> FlatVariable:
        """A vector of zeros, shape [size]."""
        return cls(np.zeros(size, np.float32))

    @property
    def handle(self) -> tf.Tensor:
        """What the resource kernels take."""
        return self._variable.handle

    def snapshot(self) -> FlatVector:
        """The values now: a read-only float32 array of shape [size] that never changes."""
        vector: FlatVector = np.asarray(memoryview(self._variable.read_value()))
        return vector

    def assign(self, values: FlatVector) -> None:
        """Take other values, float32 of the same shape."""
        with tf.device("/CPU:0"):
            self._variable.assign(np.array(values, np.float32))
