"""Unnamed memory that processes of one host share: it is passed by descriptor and ends with its last holder."""

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
"""Whether the system has memory of this kind, and numbers in it as they are on the wire."""

_NUMBER_BYTES = 4
# Python 3.13 names it: who is handed the descriptor can map the memory to read it, and not to write to it.
_F_SEAL_FUTURE_WRITE = 0x10


def make(size: int, *, at_once: bool = True) -> tuple[int, FlatVector]:
    """Memory of zeros, float32 [size], and its descriptor, which is the caller's to close. It never changes its length:
    nobody who maps it can be made to fall off its end. `at_once`: see `map_`.

    Raises OSError if there is no more memory, or there are no more descriptors.
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
    """Make later mappings read-only, as far as the system can (Linux 5.1); existing ones stay. Allow no more seals."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)


def forbid_seals(descriptor: int) -> None:
    """Seal the seals: no process that has the descriptor can make the memory read-only."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)


def map_(descriptor: int, size: int, *, writable: bool, at_once: bool = True) -> FlatVector:
    """Return the memory behind a descriptor, which can be closed afterwards: float32 [size].

    `at_once`: the kernel gives all of it now, which costs a fraction of touching it page by page; else what is never
    touched takes no memory.

    Raises OSError, and ValueError if it is not of this length.
    """
    if os.fstat(descriptor).st_size != _NUMBER_BYTES * size:
        raise ValueError(f"memory of {os.fstat(descriptor).st_size} bytes was handed over for {size} numbers")
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if at_once else 0)
    mapped: FlatVector = np.frombuffer(mmap.mmap(descriptor, _NUMBER_BYTES * size, flags, protection), "<f4")
    return mapped
