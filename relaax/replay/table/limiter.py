"""Limit how often an item is sampled: neither side may run ahead of the other."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt


class RateLimiter:
    """Hold samples to `samples_per_insert` times inserts, give or take `error_buffer` samples. Thread-safe.

    As SampleToInsertRatio of Reverb (Cassirer et al. 2021, section 3.4): the balance, inserts x `samples_per_insert` -
    samples, stays within `error_buffer` of `min_size` x `samples_per_insert` once `min_size` items were inserted.
    Before, nothing is sampled. None for `samples_per_insert`: that is all.

    Who waits has a turn: first come, first served, so that small requests do not starve a large one. An insert or
    sample of more than `error_buffer` is refused, so that never both sides wait. An insert that has waited
    for as long as it may is forced; what it adds beyond the upper bound is not put to the account: samplers that
    come back find no more to do than the bound allows.
    """

    def __init__(self, samples_per_insert: float | None, min_size: int, error_buffer: float = 0.0) -> None:
        if min_size < 1:
            raise ValueError(f"sampling begins with {min_size} items; 1 is the least")
        if samples_per_insert is not None:
            if not 0 < samples_per_insert < math.inf:
                raise ValueError(f"samples_per_insert is a number above 0, or None, not {samples_per_insert}")
            if not max(1.0, samples_per_insert) <= error_buffer < math.inf:
                raise ValueError(
                    f"an error_buffer of {error_buffer} lets no insert or no sample pass: "
                    f"{max(1.0, samples_per_insert)} is the least"
                )
        self._ratio = samples_per_insert
        self._min_size = min_size
        self._buffer = error_buffer
        self._middle = min_size * (samples_per_insert or 0.0)
        self._changed = threading.Condition()
        self._inserting: deque[object] = deque()  # those that wait, in their order
        self._sampling: deque[object] = deque()
        self._inserts = self._samples = self._overruns = 0
        self._balance = 0.0

    @property
    def inserts(self) -> int:
        """Return how many items were inserted."""
        return self._inserts

    @property
    def samples(self) -> int:
        """Return how many items were sampled."""
        return self._samples

    @property
    def overruns(self) -> int:
        """Return how many items were inserted after they had waited for as long as they may."""
        return self._overruns

    @property
    def balance(self) -> float:
        """Return the samples that inserts have paid for and that were not taken."""
        return self._balance

    @property
    def has_min_size(self) -> bool:
        """Return whether enough items were inserted for the first sample."""
        return self._inserts >= self._min_size

    def await_insert(self, count: int, timeout: float) -> bool:
        """Wait until `count` items may be inserted, and book them; False, and nothing, if that took `timeout` seconds.

        Raises ValueError for more than the buffer allows.
        """
        self._check_count(count, self._ratio)
        with self._changed:
            allowed = self._await_turn(self._inserting, lambda: self._insert_allowed(count), timeout)
            if allowed:
                self._count(count, 0)
            return allowed

    def force_insert(self, count: int) -> bool:
        """Book `count` items that are inserted in any case: old experience is overwritten unseen.

        Return whether they were allowed. Raises ValueError for more than the buffer allows.
        """
        self._check_count(count, self._ratio)
        with self._changed:
            allowed = self._insert_allowed(count)
            if not allowed:
                self._overruns += count
            self._count(count, 0)
            return allowed

    def await_sample(self, count: int, timeout: float) -> bool:
        """Wait until `count` items may be sampled, and book them; False, and nothing, if that took `timeout` seconds.

        Raises ValueError for more than the buffer allows.
        """
        self._check_count(count, 1.0)
        with self._changed:
            allowed = self._await_turn(self._sampling, lambda: self._sample_allowed(count), timeout)
            if allowed:
                self._count(0, count)
            return allowed

    def undo_insert(self, count: int) -> None:
        """Take back what was booked for an insert that was refused, or that was there before."""
        with self._changed:
            self._count(-count, 0)

    def undo_sample(self, count: int) -> None:
        """Take back what was booked for a sample that failed."""
        with self._changed:
            self._count(0, -count)

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the accounts: int64 [3] and float64 [1]."""
        with self._changed:
            counts = np.array([self._inserts, self._samples, self._overruns], np.int64)
            return {"counts": counts, "balance": np.array([self._balance])}

    def restore(self, state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Go on with the accounts that `state` returned; a balance out of this one's bounds is moved into them."""
        with self._changed:
            self._inserts, self._samples, self._overruns = (int(count) for count in state["counts"])
            self._balance = float(state["balance"][0])
            if self._ratio is not None and self.has_min_size:
                self._balance = min(max(self._balance, self._middle - self._buffer), self._middle + self._buffer)
            self._changed.notify_all()

    def _await_turn(self, queue: deque[object], allowed: Callable[[], bool], timeout: float) -> bool:
        """Wait until nobody stands before this caller and `allowed` says so. Called with the lock held."""
        turn = object()
        queue.append(turn)
        try:
            return self._changed.wait_for(lambda: queue[0] is turn and allowed(), timeout)
        finally:
            queue.remove(turn)
            self._changed.notify_all()

    def _insert_allowed(self, count: int) -> bool:
        # Until samplers may begin nobody but inserts can move the balance.
        if self._ratio is None or not self.has_min_size:
            return True
        return self._balance + count * self._ratio <= self._middle + self._buffer

    def _sample_allowed(self, count: int) -> bool:
        if not self.has_min_size:
            return False
        return self._ratio is None or self._balance - count >= self._middle - self._buffer

    def _count(self, inserts: int, samples: int) -> None:
        self._inserts += inserts
        self._samples += samples
        if self._ratio is not None:
            self._balance = min(self._balance + inserts * self._ratio - samples, self._middle + self._buffer)
        self._changed.notify_all()

    def _check_count(self, count: int, samples_each: float | None) -> None:
        if count < 0:
            raise ValueError(f"{count} items are none to insert or sample")
        needed = count * (samples_each or 0.0)
        if self._ratio is not None and needed > self._buffer:
            raise ValueError(
                f"{count} items at a time need an error_buffer of {needed:g} or more, not {self._buffer:g}"
            )
