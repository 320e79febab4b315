"""Vectors of the parameter server in shared memory, which workers of the host read."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from relaax.parameters.interfaces import FlatVector
from relaax.server.ports.shared_budget import Loan, SharedBudget
from relaax.transport import segments


@dataclass(frozen=True, slots=True)
class Segment:
    """A vector in shared memory, with its number and loan, which are valid while its array is in use."""

    number: int
    loan: Loan
    size: int

    @property
    def descriptor(self) -> int:
        """The descriptor to send to other processes."""
        return self.loan.shared_descriptor


class Segments:
    """The allocator of vectors that other processes can read. It finds the segment of a vector. Thread-safe."""

    def __init__(self, budget: SharedBudget) -> None:
        self._budget = budget
        self._numbers = itertools.count(1)
        self._at: dict[int, Segment] = {}
        self._alive: set[int] = set()
        self.freed = 0
        """The number of segments freed so far."""

    @property
    def alive(self) -> Set[int]:
        """Numbers of the segments in use."""
        return frozenset(self._alive)

    def empty(self, size: int) -> FlatVector:
        """Return a vector, float32 [size]: in shared memory if possible, else in this process's memory."""
        if not segments.SUPPORTED or not size:
            return np.empty(size, np.float32)
        try:
            return self._register(*self._budget.lend(size, read_only=True, at_once=True))
        except OSError:
            return np.empty(size, np.float32)

    def writable(self, size: int) -> FlatVector:
        """Return a vector that other processes can write to. Raises OSError if no shared memory is left."""
        return self._register(*self._budget.lend(size, read_only=False, at_once=True))

    def _register(self, loan: Loan, array: FlatVector) -> FlatVector:
        segment = Segment(next(self._numbers), loan, array.size)
        address = _address(array)
        self._at[address] = segment
        self._alive.add(segment.number)
        weakref.finalize(array, self._free, address, segment).atexit = False
        return array

    def find(self, array: FlatVector) -> Segment | None:
        """Return the segment that holds exactly the elements of `array`; None for memory of this process."""
        segment = self._at.get(_address(array))
        return segment if segment is not None and segment.size == array.size else None

    def _free(self, address: int, segment: Segment) -> None:
        # A finalizer runs in any thread before the memory is freed. It takes no lock, because that thread may hold it.
        self._at.pop(address, None)
        self._alive.discard(segment.number)
        self.freed += 1
        os.close(segment.descriptor)
        self._budget.give_back(segment.loan)


def _address(array: FlatVector) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
