"""Unnamed memory that processes of one host share: it is passed by descriptor and ends with its last holder."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import sys
import weakref
from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from relaax.parameters.interfaces import FlatVector

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


@dataclass(frozen=True, slots=True)
class Segment:
    """A vector of shared memory, with the number and the descriptor that it keeps while its array is in use."""

    number: int
    descriptor: int
    size: int


class Segments:
    """Makes vectors that other processes can read, and recognizes them. Thread-safe."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._at: dict[int, Segment] = {}
        self._alive: set[int] = set()
        self.freed = 0
        """The number of segments freed so far."""

    @property
    def alive(self) -> Set[int]:
        """The numbers of the segments in use."""
        return frozenset(self._alive)

    def empty(self, size: int) -> FlatVector:
        """Return a vector, float32 [size], for others to read: shared memory if any is left, else this process's."""
        if not SUPPORTED or not size:
            return np.empty(size, np.float32)
        try:
            descriptor, array = make(size)
        except OSError:
            return np.empty(size, np.float32)
        forbid_writing(descriptor)
        return self._known(descriptor, array)

    def writable(self, size: int) -> FlatVector:
        """Return a vector for others to write to as well, which is no use if they cannot.

        Raises OSError if there is no more shared memory.
        """
        descriptor, array = make(size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)  # none of them can forbid it to the next
        return self._known(descriptor, array)

    def _known(self, descriptor: int, array: FlatVector) -> FlatVector:
        segment = Segment(next(self._numbers), descriptor, array.size)
        address = _address(array)
        self._at[address] = segment
        self._alive.add(segment.number)
        weakref.finalize(array, self._free, address, segment).atexit = False
        return array

    def find(self, array: FlatVector) -> Segment | None:
        """Return the segment whose whole vector this is, or a view of it; None if it is this process's own memory."""
        segment = self._at.get(_address(array))
        return segment if segment is not None and segment.size == array.size else None

    def _free(self, address: int, segment: Segment) -> None:
        # Before the memory goes, wherever the last reference does: a lock could be held there, and none is needed.
        self._at.pop(address, None)
        self._alive.discard(segment.number)
        self.freed += 1
        os.close(segment.descriptor)


def _address(array: FlatVector) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
