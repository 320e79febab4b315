"""The host's engine, with BLAS and compiled kernels, and without TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.nn.host.network import Activations, HostNetwork
from relaax.nn.interfaces import Engine, Loss, checked_derivatives
from relaax.nn.recycled_memory import VectorPool, own_memory
from relaax.nn.specification import NetworkSpec

Array = npt.NDArray[np.float32]
Inputs = npt.NDArray[Any]

EXAMPLES = 256
"""Number of a gradient's examples that are computed at once, without an LSTM. More take memory and save no time."""

KEPT_BYTES = 32 << 20
"""Largest size of the activations that `act` keeps for the gradient."""


class HostEngine(Engine):
    """An engine on one thread of the CPU.

    The gradient reuses the activations that were computed when the agent acted on a row of the batch.
    """

    def __init__(self, spec: NetworkSpec, input_dtype: Any, batch_shape: tuple[int | None, int | None]) -> None:
        self._network = HostNetwork(spec)
        self._recurrent = spec.lstm > 0
        self._pixels = np.dtype(input_dtype) == np.uint8
        self._size = spec.layout().size
        self._gradients = VectorPool(self._size, own_memory)
        self._acting = Activations(0, self._network.sizes)
        rows, environments = batch_shape
        self._rows = rows
        self._most_kept = max(EXAMPLES, KEPT_BYTES // self._network.example_bytes)
        expected = 0 if rows is None or environments is None else rows * environments
        self._learning = Activations(min(expected, self._most_kept), self._network.sizes)
        self._kept: set[int] = set()  # rows of `_learning`, of `_environments` examples each
        self._environments = 0

    def set_parameters(self, parameters: Array, mean: Array | None = None) -> None:
        self._network.set_parameters(parameters, self._pixels, mean if self._pixels else None)
        self._kept.clear()

    def forget(self) -> None:
        self._kept.clear()

    def act(self, inputs: Inputs, state: Array, keep: int | None = None) -> tuple[dict[str, Array], Array]:
        count = len(inputs)
        activations, at = self._place(count, keep)
        after = self._network.forward(inputs, activations, at, state)
        outputs = self._network.outputs(activations, at, at + count)
        return {head: output.copy() for head, output in outputs.items()}, after

    def gradient(
        self, inputs: Inputs, state: Array, restart: npt.NDArray[np.bool_], loss: Loss, out: Array | None = None
    ) -> Array:
        network, count = self._network, restart.size
        flat_inputs = inputs.reshape(count, *inputs.shape[2:])
        at_once = count if self._recurrent else EXAMPLES
        self._grow(min(count, at_once))
        gradient = self._gradients.acquire() if out is None else out
        assert gradient.shape == (self._size,), "`out` must be as long as the parameters"
        with np.errstate(all="ignore"):  # the caller checks for NaN and infinity
            for start in range(0, count, at_once):
                part = slice(start, min(start + at_once, count))
                at = self._compute_missing(flat_inputs, part, state, restart)
                outputs = network.outputs(self._learning, at, at + part.stop - part.start)
                by_outputs = checked_derivatives(loss(outputs, part), outputs)
                network.backward(flat_inputs[part], self._learning, at, by_outputs, gradient, start > 0, state, restart)
        self._kept.clear()  # the next batch has other rows
        return gradient

    def input_gradient(self, inputs: Inputs, loss: Loss) -> Array:
        assert not self._recurrent, "the derivative by the inputs of an LSTM is not supported"
        network, count = self._network, len(inputs)
        activations, at = self._place(count, None)
        with np.errstate(all="ignore"):  # the caller checks for NaN and infinity
            network.forward(inputs, activations, at)
            outputs = network.outputs(activations, at, at + count)
            by_outputs = checked_derivatives(loss(outputs, slice(0, count)), outputs)
            return network.backward_to_inputs(activations, at, count, by_outputs)

    def _place(self, count: int, keep: int | None) -> tuple[Activations, int]:
        """Return the activations, and the position in them, for the outputs of `count` inputs."""
        if keep is not None and (self._rows is None or keep < self._rows):
            if count != self._environments:
                self._environments = count
                self._kept.clear()
            if (keep + 1) * count <= self._most_kept:
                self._grow((keep + 1) * count)
                self._kept.add(keep)
                return self._learning, keep * count
        if self._acting.count < count:
            self._acting = Activations(count, self._network.sizes)
        return self._acting, 0

    def _grow(self, count: int) -> None:
        if self._learning.count < count:
            bound = max(self._most_kept, count if self._recurrent else 0)
            self._learning = Activations(min(max(count, 2 * self._learning.count), bound), self._network.sizes)
            self._kept.clear()

    def _compute_missing(self, inputs: Inputs, part: slice, state: Array, restart: npt.NDArray[np.bool_]) -> int:
        """Compute the activations of `part` that were not kept. Return their position in `_learning`."""
        steps, environments = restart.shape
        if self._recurrent:
            # Each step needs the one before it. So either all steps are kept, or all are computed.
            if environments != self._environments or not self._kept.issuperset(range(steps)):
                self._network.forward(inputs, self._learning, 0, state, restart)
            return 0
        if environments != self._environments or part.stop > self._learning.count:
            # The rows at position 0 are used already, or were not kept.
            self._network.forward(inputs[part], self._learning, 0, state)
            return 0
        start = part.start
        while start < part.stop:
            row = start // environments
            kept = row in self._kept
            row += 1
            while row * environments < part.stop and (row in self._kept) == kept:
                row += 1
            stop = min(row * environments, part.stop)
            if not kept:
                self._network.forward(inputs[start:stop], self._learning, start, state)
            start = stop
        return int(part.start)
