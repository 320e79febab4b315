"""Compilation of kernels by numba, in the process that uses them.

A kernel's compiled code is cached until the text of the kernel's own module changes. A change of `relaax.machine_code`
alone does not renew the cache.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from relaax.machine_code.declarations import ArgumentType, ArrayType, Declaration, Inlined, Kernel, TupleType

# If scipy is installed, numba loads its BLAS, which takes 17 MB of every server. No kernel of RELAAX uses scipy. If a
# user's kernel uses it, numba loads it when it compiles that kernel.
_HIDDEN = "scipy" not in sys.modules
if _HIDDEN:
    sys.modules["scipy"] = None  # type: ignore[assignment]

import numba  # noqa: E402
import numba.np.arraymath  # noqa: E402  # looks for scipy, too
from numba import types  # noqa: E402
from numba.extending import typeof_impl  # noqa: E402

if _HIDDEN:
    del sys.modules["scipy"]


def compiled_now(declaration: Declaration) -> Kernel:
    """Compile a kernel, or load it from numba's cache. It is not cached if no cache is writable."""
    function = declaration.function
    signature, options = signature_of(declaration), options_of(declaration)
    kernel: Kernel
    try:
        kernel = numba.njit(signature, cache=_has_cache(function), **options)(function)
    except (RuntimeError, OSError):  # no writable directory, or the disk is full
        kernel = numba.njit(signature, **options)(function)
    return kernel


def signature_of(declaration: Declaration) -> Any:
    """Return numba's signature of a kernel."""
    result = types.void if declaration.returns is None else _number(declaration.returns.dtype)
    return result(*map(_type_of, declaration.arguments))


def options_of(declaration: Declaration) -> dict[str, Any]:
    """Return numba's options for a kernel."""
    return {"nogil": True, **_calculation(declaration.fastmath)}


@cache
def _dispatcher_of(function: Inlined) -> Any:
    """Return numba's object for a function that kernels call. numba keeps only a weak reference to it."""
    return numba.njit(**_calculation(function.fastmath))(function.function)


typeof_impl.register(Inlined, lambda function, _: _dispatcher_of(function)._numba_type_)


def _calculation(fastmath: frozenset[str]) -> dict[str, Any]:
    return {"error_model": "numpy", "fastmath": set(fastmath)}


def _type_of(argument: ArgumentType) -> Any:
    if isinstance(argument, ArrayType):
        order = "C" if argument.contiguous else "A"
        return types.Array(_number(argument.dtype), argument.dimensions, order, readonly=not argument.writable)
    if isinstance(argument, TupleType):
        return types.UniTuple(_number(argument.dtype), argument.length)
    return _number(argument.dtype)


def _number(dtype: str) -> Any:
    return numba.from_dtype(np.dtype(dtype))


def _has_cache(function: Kernel) -> bool:
    """Return whether a folder for compiled code exists. Without a home directory, numba would create one named `~`."""
    if os.path.expanduser("~") != "~" or os.environ.get("XDG_CACHE_HOME") or os.environ.get("NUMBA_CACHE_DIR"):
        return True
    folder = Path(function.__code__.co_filename).parent
    beside = folder / "__pycache__"
    return os.access(beside if beside.is_dir() else folder, os.W_OK)
