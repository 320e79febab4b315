"""A limit for the memory that a server shares with processes of its host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import weakref
from collections import Counter, deque

from relaax.parameters.interfaces import FlatVector
from relaax.transport import segments
from relaax.transport.frames import FrameSocket

MAX_HELD = 1024
"""Maximum number of returned loans that other processes still hold. Each occupies a descriptor of this process."""
_NUMBER_BYTES = 4
_BLOCK_BYTES = 512  # unit of st_blocks


class BudgetSpent(OSError):
    """The limit of shared memory is reached."""


def no_memory_left(error: OSError) -> str:
    """Return the error message for a caller that cannot get shared memory."""
    return f"the server has no shared memory left: {error.strerror}"


class Loan:
    """Shared memory that other processes use.

    Read-only memory counts by its length, because reading allocates pages too. Writable memory counts by its allocated
    pages, because honest writers touch a small part of their memory.
    """

    def __init__(self, descriptor: int, length: int, read_only: bool, user: FrameSocket | None) -> None:
        """Open the file of `descriptor` again; the caller closes `descriptor`. Raises OSError."""
        self.user = user
        self.length = length
        self._read_only = read_only
        own = _reopen(descriptor, os.O_RDONLY)
        self._own = own
        self._close = weakref.finalize(self, os.close, own)
        self._close.atexit = False
        self._can_detect_use = _is_unused(own)
        self.shared_descriptor = _reopen(descriptor, os.O_RDWR)
        """Descriptor for other processes. The code that sends it closes it."""

    @property
    def bytes(self) -> int:
        """The number of bytes that count towards the limit, at most `length`."""
        return self.length if self._read_only else min(self.length, os.fstat(self._own).st_blocks * _BLOCK_BYTES)

    def is_held(self) -> bool:
        """Return whether another process has the memory open or mapped; False if the kernel cannot detect it."""
        return self._can_detect_use and not _is_unused(self._own)

    def close(self) -> None:
        """Close the server's own descriptor."""
        self._close()


class SharedBudget:
    """Loans of at most `limit` bytes of shared memory in all. Thread-safe.

    Returned memory counts until other processes have released it too.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._lent: set[Loan] = set()
        self._held: set[Loan] = set()  # given back, but still held by another process
        self._given_back: deque[Loan] = deque()
        self._length = 0  # of all loans

    def lend(
        self, size: int, *, read_only: bool, at_once: bool = False, user: FrameSocket | None = None
    ) -> tuple[Loan, FlatVector]:
        """Return new memory, float32 [size].

        user: the connection that uses it, if only one does. at_once: see `segments.map_`.
        Raises BudgetSpent, and OSError if the system has no memory or descriptors left.
        """
        with self._lock:
            self._settle()
            if len(self._held) >= MAX_HELD:
                raise BudgetSpent(0, f"{MAX_HELD} parts of shared memory are still held by disconnected processes")
            # Counting the pages of all loans takes a system call for each.
            length = _NUMBER_BYTES * size
            if self._length + length > self.limit:
                taken = self._taken()
                if taken + (length if read_only or at_once else 0) > self.limit:
                    raise BudgetSpent(0, f"{taken:,} of at most {self.limit:,.0f} bytes of shared memory are taken")
            descriptor, vector = segments.make(size, at_once=at_once)
            try:
                if read_only:
                    segments.forbid_writing(descriptor)
                else:
                    segments.forbid_seals(descriptor)
                loan = Loan(descriptor, length, read_only, user)
            finally:
                os.close(descriptor)
            self._lent.add(loan)
            self._length += length
            return loan, vector

    def give_back(self, loan: Loan) -> None:
        """End the server's use of a loan, once. It does not wait for a lock, because finalizers call it."""
        self._given_back.append(loan)
        if self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def taken(self) -> int:
        """Return the number of bytes that count towards the limit."""
        with self._lock:
            self._settle()
            return self._taken()

    def sweep(self) -> None:
        """Free memory that other processes have unmapped. While the limit is exceeded, end the largest connections."""
        by_user: Counter[FrameSocket] = Counter()
        with self._lock:
            self._settle()
            excess = -self.limit
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
            self._length -= loan.length
            loan.close()


def _reopen(descriptor: int, flags: int) -> int:
    """Open the file of a descriptor again, so that `_is_unused` detects the new use. Without /proc, duplicate it."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        return os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)
    return os.dup(descriptor)


def _is_unused(descriptor: int) -> bool:
    """Return whether this descriptor is the only use of the file. Only then does the kernel grant a write lease."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True
