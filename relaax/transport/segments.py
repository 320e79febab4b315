"""Unnamed memory shared by processes of one host. It is passed by descriptor, and freed after its last use."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sys

import numpy as np
import numpy.typing as npt

FlatVector = npt.NDArray[np.float32]


SUPPORTED = (
    sys.platform.startswith("linux")
    and sys.byteorder == "little"
    and hasattr(os, "memfd_create")
    and hasattr(fcntl, "F_ADD_SEALS")
)
"""Whether the system supports such memory, and stores numbers in the wire's byte order."""

_NUMBER_BYTES = 4
# Python has this constant from 3.13. With this seal, later mappings of the memory are read-only.
_F_SEAL_FUTURE_WRITE = 0x10


def make(size: int, *, at_once: bool = True) -> tuple[int, FlatVector]:
    """Create memory of zeros, float32 [size]. Return its descriptor, which the caller closes, and the array.

    The memory is sealed against changes of its length, so that a process that maps it cannot be made to access memory
    beyond its end. `at_once`: see `map_`. Raises OSError if memory or descriptors are exhausted.
    """
    descriptor = os.memfd_create("relaax", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, _NUMBER_BYTES * size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return descriptor, map_(descriptor, size, writable=True, at_once=at_once)
    except BaseException:
        os.close(descriptor)
        raise


def forbid_writing(descriptor: int) -> None:
    """Make later mappings read-only if the system supports it (Linux 5.1), and forbid further seals.

    Existing mappings do not change.
    """
    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)


def forbid_seals(descriptor: int) -> None:
    """Forbid further seals, so that no process with the descriptor can make the memory read-only."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)


def map_(descriptor: int, size: int, *, writable: bool, at_once: bool = True) -> FlatVector:
    """Map the memory of a descriptor, which can be closed afterwards. Return float32 [size].

    `at_once`: the kernel allocates all pages now, which is much faster than page by page at first use. Otherwise unused
    pages take no memory. Raises OSError, and ValueError if the memory has another length.
    """
    if os.fstat(descriptor).st_size != _NUMBER_BYTES * size:
        raise ValueError(f"received memory of {os.fstat(descriptor).st_size} bytes for {size} float32 numbers")
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if at_once else 0)
    mapped: FlatVector = np.frombuffer(mmap.mmap(descriptor, _NUMBER_BYTES * size, flags, protection), "<f4")
    return mapped
