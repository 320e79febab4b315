"""Declarations of kernels: their functions, the types of their arguments, and their options."""

from __future__ import annotations

from collections.abc import Callable
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


DECLARED: list[Declaration] = []
"""The kernels of all modules that have been imported."""
