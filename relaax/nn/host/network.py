"""Networks in the host's memory: forward and backward.

Small ones without convolutions, LSTM and streams are left to `dense`, which takes one call for all of it, others to
`trunk`.

TensorFlow takes 200 microseconds for a call whatever its size, and for the Atari network's gradient more than twice as
long. Outputs of the layers are kept, so that what was acted on need not be computed again for the gradient.
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
"""Without an LSTM neither is looked at."""

BYTE_SCALE = 1 / 255
"""Bytes are pixels, and the network is given them from 0 to 1."""

FEW_MULTIPLICATIONS = 500_000
"""What one call may take for some examples of a dense network: for more, BLAS's products are faster."""


class Activations:
    """Outputs of every layer for up to `count` examples."""

    def __init__(self, count: int, sizes: list[list[int]]) -> None:
        self.count = count
        self.memory: Array = np.zeros(count * sum(map(sum, sizes)), np.float32)
        """All layers, one after the other."""
        self.layers: list[list[Array]] = []
        """Of each trunk, float32 [count, size] each (see `Trunk`)."""
        self.outputs: dict[tuple[int, int], dict[str, Array]] = {}
        """The heads' outputs of rows that were asked for before."""
        start = 0
        for trunk in sizes:
            self.layers.append([])
            for size in trunk:
                self.layers[-1].append(self.memory[start : start + count * size].reshape(count, size))
                start += count * size


class HostNetwork:
    """Compute a network for a few examples at a time. Nothing large is allocated once every size has been seen."""

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
        self._split = False  # whether the trunks have these parameters
        self.sizes = [trunk.sizes for trunk in self._trunks]
        self.example_bytes = 4 * sum(map(sum, self.sizes))
        """What `Activations` take for one example."""

    def set_parameters(self, vector: Array, pixels: bool) -> None:
        """Take over float32 [P], which must not change any more. `pixels`: inputs are bytes."""
        if vector.shape != self._parameters.shape:
            self._layout.views(vector)  # says what is wrong
        self._parameters, self._scale, self._split = vector, BYTE_SCALE if pixels else 1.0, False

    def forward(
        self, inputs: Images, activations: Activations, at: int, state: Array = NO_STATE, restart: Mask | None = None
    ) -> Array:
        """Compute the rows from `at` on of `activations`, and return the state after the last step.

        `inputs`: [T * N, *spec.inputs]. `state`: float32 [N, spec.state_size], what an LSTM remembers before the first
        step. `restart`: bool [T, N], True if the state before a step is zero; None if it is nowhere.
        """
        flat = self._flat(inputs)
        if self._dense and len(inputs) <= self._few:
            self._dense.forward(self._parameters, flat, activations.memory, activations.count, at)
            return state
        self._give_trunks()
        after = np.empty_like(state) if self._recurrent else state
        for trunk, layers in zip(self._trunks, activations.layers, strict=True):
            rows = [layer[at : at + len(inputs)] for layer in layers]
            trunk.forward(inputs, flat, rows, state, after, restart)
        return after

    def outputs(self, activations: Activations, start: int, stop: int) -> dict[str, Array]:
        """Return views of the heads' outputs, float32 [stop - start, width], of the rows given."""
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
        further: bool,
        state: Array = NO_STATE,
        restart: Mask = NO_RESTART,
    ) -> None:
        """Write the gradient by the parameters to `out`, float32 [P], or add it if `further`: never with an LSTM.

        `activations`: what the network computed of the inputs, from row `start` on. `gradients`: by the heads' outputs,
        head -> float32 [T * N, width]. The rest as for `forward`.
        """
        flat = self._flat(inputs)
        if self._dense and len(inputs) <= self._few:
            self._backward_dense(self._dense, flat, activations, start, gradients, out, further)
            return
        self._give_trunks()
        views = self._layout.views(out)
        for trunk, layers in zip(self._trunks, activations.layers, strict=True):
            rows = [layer[start : start + len(inputs)] for layer in layers]
            trunk.backward(inputs, flat, rows, gradients, views, further, state, restart)

    def _give_trunks(self) -> None:
        """Most parameters of small networks never need it."""
        if not self._split:
            views = self._layout.views(self._parameters)
            for trunk in self._trunks:
                trunk.set_parameters(views, self._scale)
            self._split = True

    def _backward_dense(
        self,
        dense: Dense,
        flat: Array,
        activations: Activations,
        start: int,
        gradients: Mapping[str, Array],
        out: Array,
        further: bool,
    ) -> None:
        count = len(flat)
        by_outputs = self._scratch.take("by outputs", count * dense.width, 1).reshape(-1)
        for head, (target, width, columns) in dense.heads.items():
            part = by_outputs[target * count : (target + width) * count]
            part.reshape(count, width)[:, columns] = gradients[head]
        if not further:
            out.fill(0)
        dense.backward(self._parameters, flat, activations.memory, activations.count, start, by_outputs, out)

    def _flat(self, inputs: Images) -> Array:
        """Return inputs as dense layers multiply them, float32 [B, features]; convolutions take them as they are."""
        if not self._flattens:
            return inputs
        flat: Array = inputs.reshape(len(inputs), -1)
        if flat.dtype == np.float32 and self._scale == 1.0:
            return flat
        scaled: Array = self._scratch.take("inputs", *flat.shape)
        np.multiply(flat, np.float32(self._scale), out=scaled, dtype=np.float32)
        return scaled
