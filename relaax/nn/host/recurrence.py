"""Sums that run backwards over a rollout, compiled."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.machine_code import FLAT, READ, Kernel, compiled, types

Array = npt.NDArray[np.float32]


def discounted_sums(terms: Array, decays: Array) -> None:
    """Compute s_t = term_t + decay_t * s_{t+1} over a rollout, in place: contiguous float32 [T, N] each."""
    _sums()(terms.reshape(-1), decays.reshape(-1), terms.shape[1])


def compile_kernels() -> None:
    """Compile everything, for a process that is forked later: seconds once, then milliseconds."""
    _sums()


def _sums_kernel(terms: Any, decays: Any, width: Any) -> None:
    for i in range(len(terms) - width - 1, -1, -1):
        terms[i] += decays[i] * terms[i + width]


@cache
def _sums() -> Kernel:
    return compiled(_sums_kernel, FLAT, READ, types.int64)
