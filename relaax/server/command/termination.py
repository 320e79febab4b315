"""The reasons why a server ends, and how its main thread learns them."""

from __future__ import annotations

import collections
import contextlib
import enum
import select
import signal
import socket
from collections.abc import Iterator, Mapping
from types import FrameType


class Reason(enum.Enum):
    """The reason why a server ends."""

    FINISHED = enum.auto()
    TERMINATED = enum.auto()
    INTERRUPTED = enum.auto()
    RELEASED = enum.auto()
    """Shard 0 has ended, and releases this shard."""
    REFUSED = enum.auto()
    """Shard 0 refuses this shard; or, of shard 0 itself, no checkpoint is usable by all shards."""
    SUPERSEDED = enum.auto()
    """Another server has taken over the lease: nothing that is learned here can be saved."""


def signal_reasons() -> dict[int, Reason]:
    """Return the signals that end a server, with their reasons. One that nohup has set aside is not among them."""
    reasons: dict[int, Reason] = {signal.SIGINT: Reason.INTERRUPTED, signal.SIGTERM: Reason.TERMINATED}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        reasons[signal.SIGHUP] = Reason.TERMINATED  # its terminal has gone
    return reasons


class EndRequests:
    """Reasons to end, put by any thread or signal handler and waited for by one thread.

    A socket pair and no queue: the kernel may hand a signal to any thread, and a main thread that waits for a lock
    would not run its handler. The interpreter itself writes to the socket when a signal comes, which wakes it always.
    """

    def __init__(self) -> None:
        self._reasons: collections.deque[Reason] = collections.deque()
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)

    def put(self, reason: Reason) -> None:
        """Add a reason to end."""
        self._reasons.append(reason)
        with contextlib.suppress(OSError):  # full: there is enough to wake up for; or nobody waits any more
            self._write.send(b"\0")

    def get(self, timeout: float | None = None) -> Reason | None:
        """Wait for the next reason; return None if none came in `timeout` seconds."""
        while not self._reasons:
            ready, _, _ = select.select([self._read], [], [], timeout)
            if not ready:
                return None
            with contextlib.suppress(BlockingIOError):
                self._read.recv(4096)
        return self._reasons.popleft()

    def close(self) -> None:
        """Close the sockets."""
        self._read.close()
        self._write.close()

    @contextlib.contextmanager
    def signals(self, reasons: Mapping[int, Reason], afterwards: signal.Handlers | None = None) -> Iterator[None]:
        """Treat these signals as reasons while inside. Afterwards they have their former handlers, or `afterwards`.

        For the main thread.
        """

        def handle(number: int, _frame: FrameType | None) -> None:
            self.put(reasons[number])

        wakeup = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, handle) for number in reasons}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if afterwards is None else afterwards)
            signal.set_wakeup_fd(wakeup)
