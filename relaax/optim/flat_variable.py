"""A flat float32 vector that TensorFlow's kernels update in place, on the device that TensorFlow chooses."""

from __future__ import annotations

import numpy as np

from relaax.nn.tensorflow_loading import tf
from relaax.optim.vector import FlatVector, Vector


class FlatVariable(Vector):
    """A resource variable of shape [size], placed where TensorFlow places things (see `relaax.nn.devices`).

    In the host's memory `snapshot` costs no copy: it shares the variable's buffer, and a kernel that is about to write
    to a shared buffer copies it first. So a vector is copied at most once per update, and only if somebody still
    reads it. On any other device a snapshot is a copy.
    """

    def __init__(self, values: FlatVector) -> None:
        # A copy: TensorFlow may adopt the memory of an array that it is given.
        self._variable = tf.Variable(np.array(values, np.float32), trainable=False, dtype=tf.float32)
        self._shares_memory = self.device.endswith("/device:CPU:0")

    @classmethod
    def zeros(cls, size: int) -> FlatVariable:
        """Return a vector of zeros, shape [size]."""
        return cls(np.zeros(size, np.float32))

    @property
    def device(self) -> str:
        """TensorFlow's full name of the device that holds it."""
        return str(self._variable.device)

    @property
    def handle(self) -> tf.Tensor:
        """What the resource kernels take. They run on its device."""
        return self._variable.handle

    def snapshot(self) -> FlatVector:
        # Less than `read_value`, which makes an identity beside it: 0.05 ms of a push if the caches are cold.
        value = tf.raw_ops.ReadVariableOp(resource=self._variable.handle, dtype=tf.float32)
        if self._shares_memory:
            shared: FlatVector = np.asarray(memoryview(value))
            return shared
        copy: FlatVector = value.numpy()
        copy.flags.writeable = False
        return copy

    def shared(self) -> FlatVector:
        return self.snapshot()

    def assign(self, values: FlatVector) -> None:
        self._variable.assign(np.array(values, np.float32))
