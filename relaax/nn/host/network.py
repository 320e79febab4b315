"""Networks in the host's memory: forward and backward.

`dense` computes small networks without convolutions, LSTM and streams, in one call. `trunk` computes all others.

A call of TensorFlow takes at least 200 microseconds. Here, the outputs of the layers are kept, so the gradient does not
compute them again. If all are kept, TensorFlow takes 1.6 to 3.2 times as long for the gradient of the Atari network
(docs/results/archive/2026-11-22-engine.md).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relaax.nn.host.convolution import Images
from relaax.nn.host.dense import Dense
from relaax.nn.host.trunk import Trunk
from relaax.nn.recycled_memory import Scratch
from relaax.nn.specification import NetworkSpec

Array = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

NO_STATE: Array = np.zeros((0, 0), np.float32)
NO_RESTART: Mask = np.zeros((0, 0), np.bool_)
"""Values of `state` and `restart` without an LSTM. They are not read."""

BYTE_SCALE = 1 / 255
"""Scale of inputs that are bytes. They are pixels, and the network receives them from 0 to 1."""

FEW_MULTIPLICATIONS = 500_000
"""Largest number of multiplications for which a dense network is computed in one call. Above it, BLAS is faster."""


class Activations:
    """Outputs of every layer for up to `count` examples."""

    def __init__(self, count: int, sizes: list[list[int]]) -> None:
        self.count = count
        self.memory: Array = np.zeros(count * sum(map(sum, sizes)), np.float32)
        """All layers, concatenated."""
        self.layers: list[list[Array]] = []
        """The layers of each trunk, float32 [count, size] each (see `Trunk`)."""
        self.outputs: dict[tuple[int, int], dict[str, Array]] = {}
        """Cached views of the heads' outputs, by start and stop."""
        start = 0
        for trunk in sizes:
            self.layers.append([])
            for size in trunk:
                self.layers[-1].append(self.memory[start : start + count * size].reshape(count, size))
                start += count * size


class HostNetwork:
    """A network for a few examples at a time. Only the first batch of a size allocates large memory."""

    def __init__(self, spec: NetworkSpec) -> None:
        self._recurrent = spec.lstm > 0
        self._layout = spec.layout()
        self._scratch = Scratch()
        trunks = spec.trunks().items()
        self._trunks = [Trunk(spec, name, heads, place, self._scratch) for place, (name, heads) in enumerate(trunks)]
        streams = spec.streams and any(len(trunk.heads) > 1 for trunk in self._trunks)
        self._dense = None if spec.convolutions or spec.lstm or streams else Dense(spec)
        self._few = FEW_MULTIPLICATIONS // self._dense.multiplications if self._dense else 0
        self._flattens = not spec.convolutions
        self._parameters: Array = np.zeros(0, np.float32)
        self._scale = 1.0
        self._mean: Array | None = None
        self._trunks_are_current = False  # whether the trunks have the current parameters
        self.sizes = [trunk.sizes for trunk in self._trunks]
        self.example_bytes = 4 * sum(map(sum, self.sizes))
        """Bytes of `Activations` for one example."""

    def set_parameters(self, vector: Array, pixels: bool, mean: Array | None = None) -> None:
        """Use these parameters, float32 [P]. Neither array may change later.

        `pixels`: inputs are bytes. `mean`: subtracted from them, float32 [*spec.inputs]; None to subtract nothing.
        """
        if vector.shape != self._parameters.shape:
            self._layout.views(vector)  # raises ValueError if the length is wrong
        self._parameters, self._scale, self._trunks_are_current = vector, BYTE_SCALE if pixels else 1.0, False
        self._mean = mean

    def forward(
        self, inputs: Images, activations: Activations, at: int, state: Array = NO_STATE, restart: Mask | None = None
    ) -> Array:
        """Compute the rows of `activations` from `at` on. Return the state after the last step.

        `inputs`: [T * N, *spec.inputs]. `state`: float32 [N, spec.state_size], of an LSTM before the first step.
        `restart`: bool [T, N], True if the state before a step is set to zero; None if it never is.
        """
        flat = self._flat(inputs)
        if self._dense and len(inputs) <= self._few:
            self._dense.forward(self._parameters, flat, activations.memory, activations.count, at)
            return state
        self._update_trunks()
        after = np.empty_like(state) if self._recurrent else state
        for trunk, layers in zip(self._trunks, activations.layers, strict=True):
            rows = [layer[at : at + len(inputs)] for layer in layers]
            trunk.forward(inputs, flat, rows, state, after, restart)
        return after

    def outputs(self, activations: Activations, start: int, stop: int) -> dict[str, Array]:
        """Return views of the heads' outputs of the rows from `start` to `stop`, float32 [stop - start, width]."""
        outputs = activations.outputs.get((start, stop))
        if outputs is None:
            outputs = activations.outputs[start, stop] = {
                head: layers[-1][start:stop, columns]
                for trunk, layers in zip(self._trunks, activations.layers, strict=True)
                for head, (_, columns) in trunk.heads.items()
            }
        return outputs

    def backward(
        self,
        inputs: Images,
        activations: Activations,
        start: int,
        gradients: Mapping[str, Array],
        out: Array,
        accumulate: bool,
        state: Array = NO_STATE,
        restart: Mask = NO_RESTART,
    ) -> None:
        """Write the gradient by the parameters to `out`, float32 [P], or add it if `accumulate` (not with an LSTM).

        `activations`: the results of `forward` for these inputs, from row `start` on. `gradients`: by the heads'
        outputs, head -> float32 [T * N, width]. `state`, `restart`: as in the call of `forward`.
        """
        flat = self._flat(inputs)
        if self._dense and len(inputs) <= self._few:
            self._backward_dense(self._dense, flat, activations, start, gradients, out, accumulate)
            return
        self._update_trunks()
        views = self._layout.views(out)
        for trunk, layers in zip(self._trunks, activations.layers, strict=True):
            rows = [layer[start : start + len(inputs)] for layer in layers]
            trunk.backward(inputs, flat, rows, gradients, views, accumulate, state, restart)

    def backward_to_inputs(
        self, activations: Activations, start: int, count: int, gradients: Mapping[str, Array]
    ) -> Array:
        """Return the gradient by the inputs, float32 [B, features], valid until the next call; without an LSTM.

        With convolutions, it is the gradient by the side numbers. The other arguments: see `backward`.
        """
        self._update_trunks()
        summed = np.zeros((0, 0), np.float32)
        for trunk, layers in zip(self._trunks, activations.layers, strict=True):
            by_inputs = trunk.backward_to_inputs([layer[start : start + count] for layer in layers], gradients)
            if not summed.size:  # the trunks share scratch memory
                summed = self._scratch.array("by inputs", *by_inputs.shape)
                summed[...] = by_inputs
            else:
                summed += by_inputs
        return summed

    def _update_trunks(self) -> None:
        """Set the parameters of the trunks if they are not current. Small networks rarely need it."""
        if not self._trunks_are_current:
            views = self._layout.views(self._parameters)
            for trunk in self._trunks:
                trunk.set_parameters(views, self._scale, self._mean)
            self._trunks_are_current = True

    def _backward_dense(
        self,
        dense: Dense,
        flat: Array,
        activations: Activations,
        start: int,
        gradients: Mapping[str, Array],
        out: Array,
        accumulate: bool,
    ) -> None:
        count = len(flat)
        by_outputs = self._scratch.array("by outputs", count * dense.width, 1).reshape(-1)
        for head, (target, width, columns) in dense.heads.items():
            part = by_outputs[target * count : (target + width) * count]
            part.reshape(count, width)[:, columns] = gradients[head]
        if not accumulate:
            out.fill(0)
        dense.backward(self._parameters, flat, activations.memory, activations.count, start, by_outputs, out)

    def _flat(self, inputs: Images) -> Array:
        """Return inputs minus their mean, scaled and flattened, float32 [B, features]; unchanged for convolutions."""
        if not self._flattens:
            return inputs
        flat: Array = inputs.reshape(len(inputs), -1)
        if flat.dtype == np.float32 and self._scale == 1.0:
            return flat
        scaled: Array = self._scratch.array("inputs", *flat.shape)
        if self._mean is not None:
            np.subtract(flat, self._mean.reshape(-1), out=scaled)
            flat = scaled
        np.multiply(flat, np.float32(self._scale), out=scaled, dtype=np.float32)
        return scaled
