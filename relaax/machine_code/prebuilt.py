"""The library of kernels that the build has compiled for this processor."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from relaax.machine_code.declarations import Declaration, Kernel
from relaax.machine_code.fingerprint import UnsupportedGlobal, fingerprint

FOLDER = Path(__file__).resolve().parent
MODULE = "prebuilt_kernels"
"""Name of the library as a module."""

_X86_64_V2 = "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"
LEVELS = {
    "x86_64": {
        "x86-64-v3": f"{_X86_64_V2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave",
        "x86-64-v2": _X86_64_V2,
    },
}
"""By machine, its levels, best first: the name that LLVM uses, and Linux's names of the features that it needs.

A machine without an entry has the one level `generic`. Level 4 of x86-64 is no faster: LLVM uses vectors of 256 bits.
"""

_log = logging.getLogger(__name__)


class Library(NamedTuple):
    """A library that has been loaded, or why none was: `module` is None, and `reason` is a clause."""

    module: ModuleType | None
    level: str = ""
    reason: str = ""


def kernel_of(declaration: Declaration) -> Kernel | None:
    """Return a kernel from the library; None if it does not contain this version of the kernel."""
    module = _loaded().module
    if module is None:
        return None
    try:
        kernel: Kernel | None = getattr(module, fingerprint(declaration), None)
    except (OSError, IndexError, UnsupportedGlobal):
        return None
    return kernel


def levels() -> dict[str, str]:
    """Return the levels of this machine's kind of processor, best first, with the features that each needs."""
    return LEVELS.get(os.uname().machine, {"generic": ""})


def library_path(level: str, folder: Path = FOLDER) -> Path:
    """Return the path of the library for a level."""
    return folder / f"{MODULE}.{level}.abi3.so"


@cache
def library(folder: Path = FOLDER) -> Library:
    """Load the best library of a folder that fits this processor."""
    needed = levels()
    built = [level for level in needed if library_path(level, folder).is_file()]
    if not built:
        return Library(None, reason="this installation has none")
    features = _features()
    fitting = [level for level in built if features is None or features.issuperset(needed[level].split())]
    if not fitting:
        return Library(None, reason=f"the processor lacks the features of {built[-1]}")
    if sys.implementation.name != "cpython" or sys.abiflags or not _has_expected_layout():
        return Library(None, reason="objects of this Python or numpy have another layout")
    spec = importlib.util.spec_from_file_location(MODULE, library_path(fitting[0], folder))
    assert spec is not None, "an extension module has a loader"
    try:
        module = importlib.util.module_from_spec(spec)
    except ImportError as error:
        return Library(None, reason=f"it cannot be loaded: {error}")
    return Library(module, fitting[0])


@cache
def _loaded() -> Library:
    found = library()
    if found.module is None:
        _log.warning(
            "kernels are compiled by numba, because the library of compiled kernels is not used: %s", found.reason
        )
    return found


def _features() -> set[str] | None:
    """Return the names of the processor's features; None if the system does not list them as Linux does."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                name, _, values = line.partition(":")
                if name.strip() in {"flags", "Features"}:
                    return set(values.split())
    except OSError:
        pass
    return None


def _has_expected_layout() -> bool:
    """Return whether arrays have the layout that the library uses (see `entries`)."""
    array = np.zeros((3, 5), np.int16)[:, 1:]
    array.flags.writeable = False
    address = id(array)
    data, dimensions, strides, descr = (
        ctypes.c_size_t.from_address(address + offset).value for offset in (16, 32, 40, 56)
    )
    return (
        object.__basicsize__ == 16
        and data == array.ctypes.data
        and ctypes.c_int.from_address(address + 24).value == array.ndim
        and list((ctypes.c_ssize_t * 2).from_address(dimensions)) == [3, 4]
        and list((ctypes.c_ssize_t * 2).from_address(strides)) == [10, 2]
        and descr == id(array.dtype)
        and ctypes.c_int.from_address(address + 64).value == array.flags.num
        and ctypes.c_char.from_address(descr + 26).value == b"="
        and ctypes.c_int.from_address(descr + 28).value == array.dtype.num
    )
