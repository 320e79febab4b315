"""Bound the memory that a server shares with processes of its host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import weakref
from collections import Counter, deque

from relaax.parameters import segments
from relaax.parameters.frames import FrameSocket
from relaax.parameters.interfaces import FlatVector

MAX_HELD = 1024
"""Maximum number of returned loans that other processes still hold; each costs this process a descriptor."""
_NUMBER_BYTES = 4
_BLOCK_BYTES = 512  # of st_blocks


class BudgetSpent(OSError):
    """The budget is spent."""


class Loan:
    """Shared memory that is handed to other processes.

    Read-only memory counts by its length, because reading allocates pages too. Other memory counts by what is
    allocated, because honest writers touch a small part of what they are given.
    """

    def __init__(self, descriptor: int, length: int, read_only: bool, user: FrameSocket | None) -> None:
        """Open `descriptor` again; the caller closes its own. Raises OSError if no descriptors are left."""
        self.user = user
        self._length = length if read_only else None
        own = _opened_again(descriptor, os.O_RDONLY)
        self._own = own
        self._close = weakref.finalize(self, os.close, own)
        self._close.atexit = False
        self._can_tell = _is_alone(own)
        self.handed = _opened_again(descriptor, os.O_RDWR)
        """Descriptor for other processes, to be closed by the code that sends it."""

    @property
    def bytes(self) -> int:
        """The memory that counts."""
        return os.fstat(self._own).st_blocks * _BLOCK_BYTES if self._length is None else self._length

    def is_held(self) -> bool:
        """Return whether another process has the memory open or mapped; False where the kernel cannot tell."""
        return self._can_tell and not _is_alone(self._own)

    def close(self) -> None:
        """Close the server's own descriptor."""
        self._close()


class SharedBudget:
    """Lends up to `most` bytes of shared memory in all. Thread-safe.

    Memory that was given back counts until other processes have let go of it too.
    """

    def __init__(self, most: float) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._lent: set[Loan] = set()
        self._held: set[Loan] = set()  # given back, and still with another process
        self._given_back: deque[Loan] = deque()

    def lend(
        self, size: int, *, read_only: bool, at_once: bool = False, user: FrameSocket | None = None
    ) -> tuple[Loan, FlatVector]:
        """Return new memory, float32 [size].

        user: the connection that it is for, if it is for one alone. at_once: see `segments.map_`.
        Raises BudgetSpent, and OSError if the system has no memory or descriptors left.
        """
        with self._lock:
            self._settle()
            taken = self._taken()
            if len(self._held) >= MAX_HELD:
                raise BudgetSpent(0, f"{MAX_HELD} parts of shared memory are still held by processes that disconnected")
            if taken + (_NUMBER_BYTES * size if read_only or at_once else 0) > self.most:
                raise BudgetSpent(0, f"{taken:,} of {self.most:,.0f} bytes that may be shared are taken")
            descriptor, vector = segments.make(size, at_once=at_once)
            try:
                if read_only:
                    segments.forbid_writing(descriptor)
                else:
                    segments.forbid_seals(descriptor)
                loan = Loan(descriptor, _NUMBER_BYTES * size, read_only, user)
            finally:
                os.close(descriptor)
            self._lent.add(loan)
            return loan, vector

    def give_back(self, loan: Loan) -> None:
        """End the server's use of a loan, once. Never waits for a lock: finalizers call it."""
        self._given_back.append(loan)
        if self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def taken(self) -> int:
        """Return the bytes that count."""
        with self._lock:
            self._settle()
            return self._taken()

    def sweep(self) -> None:
        """Free memory that other processes have unmapped. While the budget is exceeded, end the largest connections."""
        by_user: Counter[FrameSocket] = Counter()
        with self._lock:
            self._settle()
            excess = -self.most
            for loan in self._lent:
                size = loan.bytes
                excess += size
                if loan.user is not None:
                    by_user[loan.user] += size
        for user, size in by_user.most_common():
            if excess <= 0:
                return
            user.shut()
            excess -= size

    def _taken(self) -> int:
        return sum(loan.bytes for loan in self._lent) + sum(loan.bytes for loan in self._held)

    def _settle(self) -> None:
        while self._given_back:
            loan = self._given_back.popleft()
            self._lent.discard(loan)
            self._held.add(loan)
        for loan in [loan for loan in self._held if not loan.is_held()]:
            self._held.remove(loan)
            loan.close()


def _opened_again(descriptor: int, flags: int) -> int:
    """Return a descriptor of an open file of its own, which the kernel counts; without /proc a duplicate."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        return os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)
    return os.dup(descriptor)


def _is_alone(descriptor: int) -> bool:
    """Return whether nothing else has the file open or mapped. The kernel grants a write lease only then."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True
