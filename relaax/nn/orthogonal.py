"""Random orthogonal matrices."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

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
