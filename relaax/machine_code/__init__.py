"""Kernels: functions that run as machine code, and the types of their arguments.

A library that RELAAX's build has made contains the kernels of RELAAX itself (see `build`), so that no server loads a
compiler. numba compiles the other kernels, and all kernels if no library fits (see `prebuilt`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from relaax.machine_code.declarations import DECLARED as DECLARED
from relaax.machine_code.declarations import ArgumentType, Declaration, Inlined, NumberType
from relaax.machine_code.declarations import ArrayType as ArrayType
from relaax.machine_code.declarations import Kernel as Kernel
from relaax.machine_code.declarations import TupleType as TupleType

FLAT = ArrayType("float32", writable=True)
"""float32 [n], contiguous."""
READ = ArrayType("float32")
"""float32 [n], contiguous, read-only."""
REAL = NumberType("float32")
"""A factor or another constant."""
NUMBER = NumberType("uint64")
"""Counts and indices. A signed index may count from an array's end, which prevents vectorization of loops."""
SIGNED = NumberType("int64")
"""An integer that may be negative."""

ANY_ORDER = frozenset({"reassoc", "contract", "nsz"})
"""Permission to add in any order, without which sums are not vectorized. Infinities and NaN are preserved."""


def compiled_once(
    *arguments: ArgumentType, fastmath: frozenset[str] = frozenset(), returns: NumberType | None = None
) -> Callable[[Kernel], Callable[[], Kernel]]:
    """Decorate a kernel: the result is a function without arguments that returns the machine code.

    It accepts arguments of these types, and releases the GIL while it runs. `fastmath`: such as `ANY_ORDER`. The kernel
    is loaded by the first call, as a process uses few of the kernels. If its module is one of `build.MODULES`, the
    build compiles it. Of its module's globals, a kernel may use numbers and `inlined` functions. Machine code from
    numba is cached in a file beside the module or in the user's cache, if one is writable.
    """

    def declare(function: Kernel) -> Callable[[], Kernel]:
        declaration = Declaration(function, arguments, returns, fastmath)
        DECLARED.append(declaration)
        return cache(lambda: _machine_code(declaration))

    return declare


def inlined(function: Kernel, fastmath: frozenset[str] = frozenset()) -> Any:
    """Make a function callable by kernels. It is compiled into each kernel. `fastmath`: as for `compiled_once`."""
    return Inlined(function, fastmath)


def _machine_code(declaration: Declaration) -> Kernel:
    from relaax.machine_code.prebuilt import kernel_of

    found = kernel_of(declaration)
    if found is not None:
        return found
    from relaax.machine_code.just_in_time import compiled_now  # imports numba, which takes 68 MB

    return compiled_now(declaration)
