"""Meters of connections and rate limits of clients, in memory that all processes of the server share.

Each worker has a row, which it writes and the server reads, without a lock. One number of the row is written by the
server: it tells the worker to disconnect its client. A client with quotas has a bucket, which its workers share. The
steps and bytes of each message are booked there. If a booking exceeds the quota, the worker waits before it serves the
message. So no message is dropped, and the connections of a client share its quota in proportion to their demand. The
lock of a bucket is the kernel's (`fcntl.lockf`), which releases it if a worker is killed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from typing import NamedTuple

from relaax.files import anonymous_file

BURST_SECONDS = 1.0
"""Seconds of unused quota that a client may use later."""
PAUSE_STEP_SECONDS = 1.0
_NUMBERS, _BYTES = 8, 8  # numbers in a row or bucket; bytes of a number
_STEPS, _TRANSFERRED, _BY_STEPS, _BY_BYTES, _STUCK_SINCE, _STUCK_AT, _DISCONNECT = range(7)
_STEPS_RATE, _STEPS_NEXT, _BYTES_RATE, _BYTES_NEXT = range(4)

WRITING, READING = 1, 2
STUCK = {WRITING: "does not read its answers", READING: "has sent part of a message"}


class MeterReading(NamedTuple):
    """Contents of a row: steps, bytes, seconds throttled by each quota, and when and where the connection got stuck."""

    steps: float = 0.0
    bytes: float = 0.0
    throttled_by_steps: float = 0.0
    throttled_by_bytes: float = 0.0
    stuck_since: float = 0.0
    stuck_at: float = 0.0


class Meters:
    """The shared memory: first the buckets, then the rows."""

    def __init__(self, rows: int, buckets: int, descriptor: int = -1) -> None:
        """`descriptor`: existing memory; by default, new memory is allocated. Raises OSError."""
        self.rows, self.buckets = rows, buckets
        size = (rows + buckets) * _NUMBERS * _BYTES
        if descriptor < 0:
            with anonymous_file() as file:
                file.truncate(size)
                descriptor = os.dup(file.fileno())
        self.descriptor = descriptor
        self.numbers = memoryview(mmap.mmap(descriptor, size)).cast("d")

    def meter(self, row: int, bucket: int) -> Meter:
        """Return the meter of one worker."""
        return Meter(self, (self.buckets + row) * _NUMBERS, bucket * _NUMBERS)

    def read(self, row: int) -> MeterReading:
        """Return the current contents of a row."""
        at = (self.buckets + row) * _NUMBERS
        return MeterReading(*self.numbers[at : at + len(MeterReading._fields)].tolist())

    def clear(self, row: int) -> None:
        """Set a row to zero for another worker."""
        at = (self.buckets + row) * _NUMBERS
        for index in range(at, at + _NUMBERS):
            self.numbers[index] = 0.0

    def disconnect_all(self) -> None:
        """Tell all workers to disconnect their clients, each at the end of an episode."""
        for row in range(self.rows):
            self.numbers[(self.buckets + row) * _NUMBERS + _DISCONNECT] = 1.0

    def set_rates(self, bucket: int, steps: float | None, bytes_: float | None) -> None:
        """Set the rates of a bucket per second; None means no quota. A changed rate discards earlier bookings."""
        at = bucket * _NUMBERS
        for index, rate in ((_STEPS_RATE, steps or 0.0), (_BYTES_RATE, bytes_ or 0.0)):
            if self.numbers[at + index] != rate:
                self.numbers[at + index], self.numbers[at + index + 1] = rate, 0.0


class Meter:
    """The meter of one connection. Only one thread may call `charge`; any may call `set_stuck` and `clear_stuck`."""

    def __init__(self, meters: Meters, row: int, bucket: int) -> None:
        self._numbers = meters.numbers
        self._descriptor = meters.descriptor
        self._row, self._bucket = row, bucket
        self._steps = self._transferred = 0

    @property
    def must_disconnect(self) -> bool:
        """Whether the worker must disconnect its client at the end of an episode."""
        return self._numbers[self._row + _DISCONNECT] != 0.0

    def charge(self, steps: int, transferred: int) -> float:
        """Book `steps` steps and return the seconds to wait. `transferred`: bytes of the connection so far."""
        numbers, row, bucket = self._numbers, self._row, self._bucket
        more = transferred - self._transferred
        self._transferred = transferred
        self._steps += steps
        numbers[row] = self._steps
        numbers[row + _TRANSFERRED] = transferred
        if not numbers[bucket] and not numbers[bucket + _BYTES_RATE]:
            return 0.0
        return self._book(steps, more)

    def _book(self, steps: int, more: int) -> float:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, self._bucket)
        try:
            now = time.monotonic()
            by_steps = self._book_rate(self._bucket, steps, now)
            by_bytes = self._book_rate(self._bucket + _BYTES_RATE, more, now)
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._bucket)
        self._reason = _BY_STEPS if by_steps >= by_bytes else _BY_BYTES
        return max(by_steps, by_bytes)

    def _book_rate(self, at: int, amount: int, now: float) -> float:
        """Book `amount` and return the seconds until the quota covers all earlier bookings."""
        rate = self._numbers[at]
        if not rate or not amount:
            return 0.0
        begin = max(self._numbers[at + 1], now - BURST_SECONDS)
        self._numbers[at + 1] = begin + amount / rate
        return max(0.0, begin - now)

    def pause(self, seconds: float) -> None:
        """Wait for `seconds` and record them as throttled."""
        at = self._row + self._reason
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            started = time.monotonic()
            time.sleep(min(left, PAUSE_STEP_SECONDS))
            self._numbers[at] += time.monotonic() - started

    def set_stuck(self, at: int) -> None:
        """Record that the connection waits for its client, while WRITING or READING."""
        self._numbers[self._row + _STUCK_AT] = at
        self._numbers[self._row + _STUCK_SINCE] = time.monotonic()

    def clear_stuck(self) -> None:
        """Record that the connection no longer waits for its client."""
        self._numbers[self._row + _STUCK_SINCE] = 0.0
