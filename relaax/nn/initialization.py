"""Initial parameters of a network."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relaax.nn.specification import NetworkSpec

Array = npt.NDArray[np.float32]


def orthogonal_parameters(
    spec: NetworkSpec, seed: int, head_gains: Mapping[str, float], head_biases: Mapping[str, float] | None = None
) -> Array:
    """Return initial parameters, float32 [P]: orthogonal kernels (Saxe et al. 2014) with gain sqrt 2, and zero biases.

    head_gains: gains of the heads' kernels. With a small gain, the initial policy is nearly uniform.
    head_biases: biases of the heads that are not zero.

    In an LSTM, the part of each gate for the input and the part for the last output are both orthogonal, with gain 1.
    The bias of the forget gate is 1, so that initially the LSTM remembers (Jozefowicz et al. 2015). In a layer of
    streams, the part of each head is orthogonal, as if it were a separate layer. The layer that joins an image with
    side numbers has two orthogonal parts with gain 1 each. Otherwise a few numbers would have almost no effect compared
    with thousands of pixels.
    """
    rng = np.random.default_rng(seed)
    layout = spec.layout()
    vector = np.zeros(layout.size, np.float32)
    views = layout.views(vector)
    last = f"dense{len(spec.dense) - 1}/kernel"
    streams = {f"{trunk}{last}": len(heads) for trunk, heads in spec.trunks().items()} if spec.streams else {}
    joins = {f"{trunk}dense0/kernel" for trunk in spec.trunks()} if spec.side_width else set()
    for name, view in views.items():
        if name.endswith("lstm/kernel"):
            for gate in np.split(view, 4, axis=1):
                gate[: -spec.lstm] = _orthogonal(rng, gate[: -spec.lstm].shape)
                gate[-spec.lstm :] = _orthogonal(rng, gate[-spec.lstm :].shape)
        elif name.endswith("lstm/bias"):
            view[spec.lstm : 2 * spec.lstm] = 1.0
        elif name in joins:
            for part in (view[: -spec.side_width], view[-spec.side_width :]):
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


WIDE = 1024
"""Least number of columns for which reflections are used. Narrower matrices take milliseconds with either method."""
_BLOCK = 256


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.floating]:
    """Draw a matrix [rows, columns] with orthonormal columns, or rows if there are fewer rows, by Haar measure.

    float64 if the smaller side is less than `WIDE`, else float32.
    """
    tall, narrow = max(rows, columns), min(rows, columns)
    q: npt.NDArray[np.floating]
    if narrow >= WIDE:
        q = reflections(rng, tall, narrow)
    else:
        q, r = np.linalg.qr(rng.standard_normal((tall, narrow)))
        q = q * np.sign(np.diag(r))  # makes the decomposition, and so the distribution, unique
    return q if rows >= columns else q.T


def reflections(rng: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.float32]:
    """Draw a matrix [rows, columns], rows >= columns, with orthonormal columns, by Haar measure. Error: about 1e-5.

    It is the product of the Householder reflections that would decompose a matrix of normal numbers. After each
    reflection, the rest of such a matrix is again normal, and independent of the reflection (Stewart 1980). So each
    reflection can be drawn separately, without the decomposition, which is half of the work and cannot be done in
    blocks. A block of reflections is I - V T V' (Schreiber and Van Loan 1989).
    """
    q = np.zeros((rows, columns), np.float32)
    np.fill_diagonal(q, 1.0)
    for start in reversed(range(0, columns, _BLOCK)):
        count = min(_BLOCK, columns - start)
        vectors = np.tril(rng.standard_normal((rows - start, count), np.float32))
        diagonal = np.einsum("ii->i", vectors[:count])  # a view, to be written
        signs = np.where(diagonal < 0, -1, 1).astype(np.float32)
        diagonal += signs * np.linalg.norm(vectors, axis=0)  # away from 0, so that no digits are lost
        vectors *= math.sqrt(2.0) / np.linalg.norm(vectors, axis=0)  # then a reflection is I - v v'
        between = np.linalg.inv(np.triu(vectors.T @ vectors, 1) + np.eye(count, dtype=np.float32))
        part = q[start:, start:]
        part -= vectors @ (between @ (vectors.T @ part))
        part[:, :count] *= -signs  # the signs of a decomposition whose r has a positive diagonal
    return q
