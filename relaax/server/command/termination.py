"""The reasons why a server ends, and their delivery to its main thread."""

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
    """Shard 0 has ended and releases this shard."""
    REFUSED = enum.auto()
    """Shard 0 refuses this shard. For shard 0 itself: no checkpoint is usable by all shards."""
    SUPERSEDED = enum.auto()
    """Another server has taken over the lease, so this server cannot save checkpoints."""


def signal_reasons() -> dict[int, Reason]:
    """Return the signals that end a server, with their reasons. SIGHUP is omitted if it is ignored (nohup)."""
    reasons: dict[int, Reason] = {signal.SIGINT: Reason.INTERRUPTED, signal.SIGTERM: Reason.TERMINATED}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        reasons[signal.SIGHUP] = Reason.TERMINATED  # its terminal was closed
    return reasons


class EndRequests:
    """Reasons to end, put by any thread or signal handler and received by one thread.

    It is a socket pair instead of a queue: the kernel may deliver a signal to any thread, and a main thread that waits
    for a lock would not run the handler. When a signal arrives, the interpreter writes to the socket, which
    always wakes the main thread.
    """

    def __init__(self) -> None:
        self._reasons: collections.deque[Reason] = collections.deque()
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)

    def put(self, reason: Reason) -> None:
        """Add a reason to end."""
        self._reasons.append(reason)
        with contextlib.suppress(OSError):  # full, so the reader wakes up anyway; or closed
            self._write.send(b"\0")

    def get(self, timeout: float | None = None) -> Reason | None:
        """Wait for the next reason and return it; return None after `timeout` seconds."""
        while not self._reasons:
            ready, _, _ = select.select([self._read], [], [], timeout)
            if not ready:
                return None
            with contextlib.suppress(BlockingIOError):
                self._read.recv(4096)
        return self._reasons.popleft()

    def has_reason_within(self, seconds: float) -> bool:
        """Wait for a reason, at most `seconds`. Return whether there is one; it stays for the next call of `get`."""
        reason = self.get(seconds)
        if reason is not None:
            self.put(reason)
        return reason is not None

    def close(self) -> None:
        """Close the sockets."""
        self._read.close()
        self._write.close()

    @contextlib.contextmanager
    def signals(self, reasons: Mapping[int, Reason], afterwards: signal.Handlers | None = None) -> Iterator[None]:
        """Put a reason if one of these signals arrives in the block. For the main thread only.

        After the block, restore the former handlers, or set the handler `afterwards`.
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
