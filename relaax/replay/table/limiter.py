"""The rate limiter of a table, which bounds how far inserts and samples run ahead of each other."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt


class RateLimiter:
    """A limiter that keeps samples near `samples_per_insert` x inserts, within `error_buffer` samples. Thread-safe.

    It works like SampleToInsertRatio of Reverb (Cassirer et al. 2021, section 3.4). The balance is
    inserts x `samples_per_insert` - samples. Once `min_size` items were inserted, the balance stays within
    `error_buffer` of `min_size` x `samples_per_insert`. Before that, no sample is allowed. If `samples_per_insert` is
    None, only `min_size` applies.

    Waiting callers are served first come, first served, so that small requests do not starve a large one. Inserts and
    samples that need more than `error_buffer` are rejected, so that both sides never wait at the same time. An insert
    that has waited for its maximum time is forced. The balance does not rise above the upper bound, so learners that
    reconnect later do not have to catch up on the excess.

    If `inserts_wait` is false, inserts never wait and may be of any size. Samples are limited as before.
    """

    def __init__(
        self,
        samples_per_insert: float | None,
        min_size: int,
        error_buffer: float = 0.0,
        inserts_wait: bool = True,
    ) -> None:
        if min_size < 1:
            raise ValueError(f"min_size must be at least 1, not {min_size}")
        if samples_per_insert is not None:
            if not 0 < samples_per_insert < math.inf:
                raise ValueError(
                    f"samples_per_insert must be a finite number above 0, or None, not {samples_per_insert}"
                )
            if not max(1.0, samples_per_insert) <= error_buffer < math.inf:
                raise ValueError(
                    f"error_buffer must be a finite number of at least {max(1.0, samples_per_insert)}, "
                    f"not {error_buffer}: otherwise not even one item can be inserted or sampled"
                )
        self._ratio = samples_per_insert
        self._min_size = min_size
        self._buffer = error_buffer
        self._inserts_wait = inserts_wait
        self._middle = min_size * (samples_per_insert or 0.0)
        self._changed = threading.Condition()
        self._inserting: deque[object] = deque()  # waiting callers, in order
        self._sampling: deque[object] = deque()
        self._inserts = self._samples = self._overruns = 0
        self._balance = 0.0

    @property
    def inserts(self) -> int:
        """Number of inserted items."""
        return self._inserts

    @property
    def samples(self) -> int:
        """Number of sampled items."""
        return self._samples

    @property
    def overruns(self) -> int:
        """Number of items whose insert was forced."""
        return self._overruns

    @property
    def balance(self) -> float:
        """Inserts x `samples_per_insert` - samples, at most the upper bound."""
        return self._balance

    @property
    def has_min_size(self) -> bool:
        """Whether `min_size` items were inserted, so that samples are possible."""
        return self._inserts >= self._min_size

    def await_insert(self, count: int, timeout: float) -> bool:
        """Wait until `count` items may be inserted, and count them. Return False, without counting, after `timeout` s.

        Raises ValueError if the insert needs more than the buffer.
        """
        self._check_count(count, self._ratio if self._inserts_wait else 0.0)
        with self._changed:
            allowed = self._await_turn(self._inserting, lambda: self._insert_allowed(count), timeout)
            if allowed:
                self._count(count, 0)
            return allowed

    def force_insert(self, count: int) -> bool:
        """Count `count` items without waiting, even if the insert is not allowed.

        Older items may then be evicted before they are sampled. Return whether the insert was allowed. Raises
        ValueError if it needs more than the buffer.
        """
        self._check_count(count, self._ratio if self._inserts_wait else 0.0)
        with self._changed:
            allowed = self._insert_allowed(count)
            if not allowed:
                self._overruns += count
            self._count(count, 0)
            return allowed

    def await_sample(self, count: int, timeout: float) -> bool:
        """Wait until `count` items may be sampled, and count them. Return False, without counting, after `timeout` s.

        Raises ValueError if the sample needs more than the buffer.
        """
        self._check_count(count, 1.0)
        with self._changed:
            allowed = self._await_turn(self._sampling, lambda: self._sample_allowed(count), timeout)
            if allowed:
                self._count(0, count)
            return allowed

    def undo_insert(self, count: int) -> None:
        """Subtract the items of an insert that was rejected or was a duplicate."""
        with self._changed:
            self._count(-count, 0)

    def undo_sample(self, count: int) -> None:
        """Subtract the items of a sample that failed."""
        with self._changed:
            self._count(0, -count)

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the state: `counts` int64 [3] (inserts, samples, overruns) and `balance` float64 [1]."""
        with self._changed:
            counts = np.array([self._inserts, self._samples, self._overruns], np.int64)
            return {"counts": counts, "balance": np.array([self._balance])}

    def restore(self, state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Restore what `state` returned. A balance outside the bounds is clamped to them."""
        with self._changed:
            self._inserts, self._samples, self._overruns = (int(count) for count in state["counts"])
            self._balance = float(state["balance"][0])
            if self._ratio is not None and self.has_min_size:
                self._balance = min(max(self._balance, self._middle - self._buffer), self._middle + self._buffer)
            self._changed.notify_all()

    def _await_turn(self, queue: deque[object], allowed: Callable[[], bool], timeout: float) -> bool:
        """Wait until this caller is first in `queue` and `allowed` is true. Called with the lock held."""
        if not queue and allowed():
            return True
        if timeout <= 0:
            return False
        turn = object()
        queue.append(turn)
        try:
            return self._changed.wait_for(lambda: queue[0] is turn and allowed(), timeout)
        finally:
            queue.remove(turn)
            self._changed.notify_all()

    def _insert_allowed(self, count: int) -> bool:
        # Until `min_size` is reached, there are no samples that could lower the balance.
        if self._ratio is None or not self.has_min_size or not self._inserts_wait:
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
            raise ValueError(f"number of items to insert or sample must be at least 0, not {count}")
        needed = count * (samples_each or 0.0)
        if self._ratio is not None and needed > self._buffer:
            raise ValueError(
                f"{count} items at a time need an error_buffer of at least {needed:g}, not {self._buffer:g}"
            )
