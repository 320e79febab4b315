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


WIDE = 1024
"""Columns from which on reflections are used: narrower matrices are a matter of milliseconds either way."""
_BLOCK = 256


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.floating]:
    """Draw a matrix [rows, columns] with orthonormal columns, or rows if those are fewer, by Haar measure.

    Up to `WIDE` float64, beyond float32.
    """
    tall, narrow = max(rows, columns), min(rows, columns)
    q = reflections(rng, tall, narrow) if narrow >= WIDE else _decomposed(rng, tall, narrow)
    return q if rows >= columns else q.T


def _decomposed(rng: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.float64]:
    q, r = np.linalg.qr(rng.standard_normal((rows, columns)))
    unique: npt.NDArray[np.float64] = q * np.sign(np.diag(r))  # the decomposition, and so the distribution
    return unique


def reflections(rng: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.float32]:
    """[rows, columns], rows >= columns, with orthonormal columns, drawn evenly, to some 1e-5.

    The product of the Householder reflections by which a matrix of normal numbers would be decomposed, in that order.
    What is left of such a matrix behind each of them is normal again and knows nothing of the last (Stewart 1980), so
    each can be drawn by itself: there is nothing to decompose, which is half of the work and cannot be done in blocks.
    A block of reflections is I - V T V' (Schreiber and Van Loan 1989).
    """
    q = np.zeros((rows, columns), np.float32)
    np.fill_diagonal(q, 1.0)
    for start in reversed(range(0, columns, _BLOCK)):
        count = min(_BLOCK, columns - start)
        vectors = np.tril(rng.standard_normal((rows - start, count), np.float32))
        diagonal = np.einsum("ii->i", vectors[:count])  # a view, to be written
        signs = np.where(diagonal < 0, -1, 1).astype(np.float32)
        diagonal += signs * np.linalg.norm(vectors, axis=0)  # away from 0: no digits are lost
        vectors *= math.sqrt(2.0) / np.linalg.norm(vectors, axis=0)  # then a reflection is I - v v'
        between = np.linalg.inv(np.triu(vectors.T @ vectors, 1) + np.eye(count, dtype=np.float32))
        part = q[start:, start:]
        part -= vectors @ (between @ (vectors.T @ part))
        part[:, :count] *= -signs  # as `_decomposed` does: r would have a positive diagonal
    return q
