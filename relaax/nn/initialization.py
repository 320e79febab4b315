"""Initial parameters of a network."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relaax.nn.orthogonal import orthogonal
from relaax.nn.specification import NetworkSpec

Array = npt.NDArray[np.float32]


def orthogonal_parameters(
    spec: NetworkSpec, seed: int, head_gains: Mapping[str, float], head_biases: Mapping[str, float] | None = None
) -> Array:
    """Initial parameters, float32 [P]: orthogonal kernels (Saxe et al. 2014) of gain sqrt 2, biases zero.

    `head_gains` are the gains of the heads' kernels: a small one makes a first policy that prefers nothing.
    `head_biases` are the heads' biases if they are not zero. In an LSTM the part of each gate that stands on the
    input is orthogonal, and so is the part that stands on the output before, both of gain 1; the bias of the forget
    gate is 1, so that it remembers at first (Jozefowicz et al. 2015). Of a layer of streams each head's part is
    orthogonal by itself, as if it were a layer of its own.
    The layer that joins an image with the numbers beside it is made of two orthogonal parts, of gain 1 each: a few
    numbers would count next to nothing beside thousands of pixels.
    """
    rng = np.random.default_rng(seed)
    layout = spec.layout()
    vector = np.zeros(layout.size, np.float32)
    views = layout.views(vector)
    last = f"dense{len(spec.dense) - 1}/kernel"
    streams = {f"{trunk}{last}": len(heads) for trunk, heads in spec.trunks().items()} if spec.streams else {}
    joins = {f"{trunk}dense0/kernel" for trunk in spec.trunks()} if spec.beside else set()
    for name, view in views.items():
        if name.endswith("lstm/kernel"):
            for gate in np.split(view, 4, axis=1):
                gate[: -spec.lstm] = _orthogonal(rng, gate[: -spec.lstm].shape)
                gate[-spec.lstm :] = _orthogonal(rng, gate[-spec.lstm :].shape)
        elif name.endswith("lstm/bias"):
            view[spec.lstm : 2 * spec.lstm] = 1.0
        elif name in joins:
            for part in (view[: -spec.beside], view[-spec.beside :]):
                part[...] = _orthogonal(rng, part.shape)
        elif name.endswith("/kernel"):
            gain = head_gains.get(name.removesuffix("/kernel"), math.sqrt(2.0))
            for part in np.split(view, streams.get(name, 1), axis=-1):
                part[...] = gain * _orthogonal(rng, part.shape)
    for head, bias in (head_biases or {}).items():
        views[f"{head}/bias"][...] = bias
    return vector


def _orthogonal(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.floating]:
    return orthogonal(rng, math.prod(shape[:-1]), shape[-1]).reshape(shape)
