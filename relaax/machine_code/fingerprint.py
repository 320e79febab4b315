"""Fingerprints of kernels, by which a library's machine code is found, and never that of an earlier text."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from relaax.machine_code.declarations import Declaration, Inlined, Kernel


class UnsupportedGlobal(TypeError):
    """A kernel uses a global that is neither a number, a module, nor an inlined function."""


def fingerprint(declaration: Declaration) -> str:
    """Return a text of 64 digits that changes with the kernel, its types, options, numbers and inlined functions.

    It does not depend on the versions of Python and numpy. Raises OSError if the source text is missing, and
    UnsupportedGlobal.
    """
    parts = [declaration.signature, *_parts(declaration.function, declaration.fastmath)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _parts(function: Kernel, fastmath: frozenset[str]) -> list[str]:
    """Return the texts that determine the machine code of a function."""
    parts = [function.__module__, _source(function.__code__), *sorted(fastmath)]
    for name in sorted(set(function.__code__.co_names)):
        value = function.__globals__.get(name)
        if isinstance(value, Inlined):
            parts += [name, *_parts(value.function, value.fastmath)]
        elif isinstance(value, (int, float, np.generic)):
            parts.append(f"{name} {type(value).__name__} {value!s}")
        elif value is not None and not isinstance(value, ModuleType) and not _is_dtype(value):
            raise UnsupportedGlobal(f"kernel {function.__name__} uses {name}: make it a number or `inlined`")
    return parts


def _is_dtype(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, np.generic)


def _source(code: CodeType) -> str:
    """Return the source text of a function at the top level of its module, from its name to its last line."""
    lines = _lines(code.co_filename)
    start = code.co_firstlineno - 1
    while not lines[start].startswith("def "):  # the first line is that of a decorator
        start += 1
    end = start + 1
    while end < len(lines) and (not lines[end].strip() or lines[end][0] in " )"):
        end += 1
    return "\n".join(lines[start:end]).rstrip()


@cache
def _lines(path: str) -> list[str]:
    return Path(path).read_text("utf-8").splitlines()
