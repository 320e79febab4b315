"""How kernels are compiled, and the types of what most of them take.

What was compiled is kept for as long as the text of a kernel's own module stays: a change here that is to reach those
who have it already must come with one there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types

Kernel = Callable[..., Any]

FLAT = types.Array(types.float32, 1, "C")
"""float32 [n], contiguous."""
READ = types.Array(types.float32, 1, "C", readonly=True)
"""float32 [n], contiguous, which is only read."""
NUMBER = types.uint64
"""Counts and indices. A signed index may count from an array's end, which keeps loops from being vectorised."""

ANY_ORDER = {"reassoc", "contract", "nsz"}
"""Leave to add up in any order, without which sums are not vectorised. What is not finite stays so."""


def compiled(function: Kernel, *arguments: Any, fastmath: bool | set[str] = False, returns: Any = types.void) -> Kernel:
    """Machine code, which is kept in a file beside its module, or in the user's cache, where that can be written.

    It takes arguments of these types. Python's lock is free while it runs. `fastmath`: liberties, such as `ANY_ORDER`.
    """
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    kernel: Kernel
    try:
        kernel = numba.njit(returns(*arguments), cache=True, **options)(function)
    except (RuntimeError, OSError):  # no directory to write to, or no room there
        kernel = numba.njit(returns(*arguments), **options)(function)
    return kernel


def inlined(function: Kernel, fastmath: bool | set[str] = False) -> Kernel:
    """Let kernels call a function, which is compiled into each of them. `fastmath`: as for `compiled`."""
    callable_by_kernels: Kernel = numba.njit(error_model="numpy", fastmath=fastmath)(function)
    return callable_by_kernels
