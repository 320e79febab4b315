"""Kernels: functions that run as machine code, and the types of their arguments.

A library that RELAAX's build has made contains the kernels of RELAAX itself (see `build`), so that no server loads a
compiler. numba compiles the other kernels, and all kernels if no library fits (see `prebuilt`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

Kernel = Callable[..., Any]


class NumberType(NamedTuple):
    """A number that is passed by value. `dtype`: its name in numpy."""

    dtype: str

    def __str__(self) -> str:
        return self.dtype


class ArrayType(NamedTuple):
    """An array of `dtype` with this number of dimensions. A kernel may write to it if `writable`.

    `contiguous`: whether it must be in C's order.
    """

    dtype: str
    dimensions: int = 1
    writable: bool = False
    contiguous: bool = True

    def __str__(self) -> str:
        words = "writable " * self.writable + "strided " * (not self.contiguous)
        return f"{words}{self.dtype}[{', '.join(':' * self.dimensions)}]"


class TupleType(NamedTuple):
    """A tuple of `length` numbers of one type."""

    dtype: str
    length: int

    def __str__(self) -> str:
        return f"{self.length} x {self.dtype}"


ArgumentType = NumberType | ArrayType | TupleType

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


class Declaration(NamedTuple):
    """A kernel's function, the types of its arguments and of its result (None: no result), and its options."""

    function: Kernel
    arguments: tuple[ArgumentType, ...]
    returns: NumberType | None
    fastmath: frozenset[str]

    @property
    def signature(self) -> str:
        """Return the types as text."""
        return f"({', '.join(map(str, self.arguments))}) -> {self.returns}"


class Inlined:
    """A function that kernels call. It is compiled into each of them."""

    def __init__(self, function: Kernel, fastmath: frozenset[str]) -> None:
        self.function = function
        self.fastmath = fastmath

    @property
    def _numba_type_(self) -> Any:
        """Return the function's type when numba compiles a kernel that calls it."""
        from relaax.machine_code.just_in_time import dispatcher_of

        return dispatcher_of(self)._numba_type_


DECLARED: list[Declaration] = []
"""The kernels of all modules that have been imported."""


def compiled(
    function: Kernel,
    *arguments: ArgumentType,
    fastmath: frozenset[str] = frozenset(),
    returns: NumberType | None = None,
) -> Kernel:
    """Return `function` as machine code for arguments of these types. It releases the GIL while it runs.

    Machine code from numba is cached in a file beside the function's module or in the user's cache, if one is writable.
    `fastmath`: such as `ANY_ORDER`.
    """
    return _machine_code(Declaration(function, arguments, returns, fastmath))


def compiled_once(
    *arguments: ArgumentType, fastmath: frozenset[str] = frozenset(), returns: NumberType | None = None
) -> Callable[[Kernel], Callable[[], Kernel]]:
    """Decorate a kernel: the result is a function without arguments that returns the machine code (see `compiled`).

    The kernel is loaded by the first call, as a process uses few of the kernels. If its module is one of
    `build.MODULES`, the build compiles it. It may use only numbers and `inlined` functions of its module's globals.
    """

    def declare(function: Kernel) -> Callable[[], Kernel]:
        declaration = Declaration(function, arguments, returns, fastmath)
        DECLARED.append(declaration)
        return cache(lambda: _machine_code(declaration))

    return declare


def inlined(function: Kernel, fastmath: frozenset[str] = frozenset()) -> Any:
    """Make a function callable by kernels. It is compiled into each kernel. `fastmath`: as for `compiled`."""
    return Inlined(function, fastmath)


def _machine_code(declaration: Declaration) -> Kernel:
    from relaax.machine_code.prebuilt import kernel_of

    found = kernel_of(declaration)
    if found is not None:
        return found
    from relaax.machine_code.just_in_time import compiled_now  # imports numba, which takes 68 MB

    return compiled_now(declaration)
