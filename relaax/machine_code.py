"""Compilation of kernels, and the types of their usual arguments.

A kernel's compiled code is cached until the text of the kernel's own module changes. A change of this module alone does
not renew the cache.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

# If scipy is installed, numba loads its BLAS, which takes 17 MB of every server. No kernel of RELAAX uses scipy. If a
# user's kernel uses it, numba loads it when it compiles that kernel.
_HIDDEN = "scipy" not in sys.modules
if _HIDDEN:
    sys.modules["scipy"] = None  # type: ignore[assignment]

import numba as numba  # noqa: E402
import numba.np.arraymath  # noqa: E402  # looks for scipy, too
from numba import from_dtype as from_dtype  # noqa: E402
from numba import types as types  # noqa: E402

if _HIDDEN:
    del sys.modules["scipy"]

Kernel = Callable[..., Any]

FLAT = types.Array(types.float32, 1, "C")
"""float32 [n], contiguous."""
READ = types.Array(types.float32, 1, "C", readonly=True)
"""float32 [n], contiguous, read-only."""
NUMBER = types.uint64
"""Counts and indices. A signed index may count from an array's end, which prevents vectorization of loops."""

ANY_ORDER = {"reassoc", "contract", "nsz"}
"""Permission to add in any order, without which sums are not vectorized. Infinities and NaN are preserved."""


def compiled(function: Kernel, *arguments: Any, fastmath: bool | set[str] = False, returns: Any = types.void) -> Kernel:
    """Compile `function` for arguments of these types, cached in a file beside its module or in the user's cache.

    It releases the GIL while it runs, and is not cached if no cache is writable. `fastmath`: such as `ANY_ORDER`.
    """
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    kernel: Kernel
    try:
        kernel = numba.njit(returns(*arguments), cache=_has_cache(function), **options)(function)
    except (RuntimeError, OSError):  # no writable directory, or the disk is full
        kernel = numba.njit(returns(*arguments), **options)(function)
    return kernel


def compiled_once(*arguments: Any, fastmath: bool | set[str] = False) -> Callable[[Kernel], Callable[[], Kernel]]:
    """Decorate a kernel: the result is a function without arguments that returns the machine code (see `compiled`).

    The kernel is compiled or loaded by the first call, because numba is slow to create types.
    """
    return lambda function: cache(lambda: compiled(function, *arguments, fastmath=fastmath))


def _has_cache(function: Kernel) -> bool:
    """Return whether a folder for compiled code exists. Without a home directory, numba would create one named `~`."""
    if os.path.expanduser("~") != "~" or os.environ.get("XDG_CACHE_HOME") or os.environ.get("NUMBA_CACHE_DIR"):
        return True
    folder = Path(function.__code__.co_filename).parent
    beside = folder / "__pycache__"
    return os.access(beside if beside.is_dir() else folder, os.W_OK)


def inlined(function: Kernel, fastmath: bool | set[str] = False) -> Kernel:
    """Make a function callable by kernels. It is compiled into each kernel. `fastmath`: as for `compiled`."""
    callable_by_kernels: Kernel = numba.njit(error_model="numpy", fastmath=fastmath)(function)
    return callable_by_kernels
