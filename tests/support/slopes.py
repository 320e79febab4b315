"""Derivatives of distributions, compared with finite differences in double precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

Outputs = dict[str, np.ndarray]


def expect_slopes(
    found: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], loss: Callable[[Outputs], float]
) -> None:
    """Compare a derivative with central differences of `loss`, for every element of the outputs (head -> float32)."""
    exact = {head: output.astype(np.float64) for head, output in outputs.items()}
    for head, output in exact.items():
        for index in np.ndindex(output.shape):
            before = output[index]
            output[index] = before + 1e-5
            above = loss(exact)
            output[index] = before - 1e-5
            slope = (above - loss(exact)) / 2e-5
            output[index] = before
            assert found[head][index] == pytest.approx(slope, rel=1e-3, abs=1e-4)
