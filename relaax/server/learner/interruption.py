"""The signals that end a learner."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from relaax.server.logs import writes_log

AGAIN_SECONDS = 0.05


class SignalReceived(BaseException):
    """A signal asks the process to end. As KeyboardInterrupt, it passes what handles mere exceptions."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise SignalReceived in what runs inside, when SIGINT or SIGTERM comes first; later ones disturb no cleaning up.

    For the main thread, which may be waiting for a server then. Afterwards the signals have their former handlers.
    """
    ending = (signal.SIGINT, signal.SIGTERM)
    numbers: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if number in ending:
            numbers.append(number)
        if writes_log(frame):
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
            return
        for each in (*ending, signal.SIGALRM):
            signal.signal(each, signal.SIG_IGN)
        raise SignalReceived(numbers[0])

    before = {number: signal.signal(number, handle) for number in (*ending, signal.SIGALRM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
