"""The signals that end a learner."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from relaax.server.command.logs import may_not_raise

WAIT_SECONDS = 1.0
"""How long a learner may take until it looks; what it waits for is interrupted then, again and again."""
AGAIN_SECONDS = 0.05
_ENDING = (signal.SIGINT, signal.SIGTERM)


class SignalReceived(BaseException):
    """A signal asks the process to end. As KeyboardInterrupt, it passes what handles mere exceptions."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interruption:
    """The first SIGINT or SIGTERM, for the main thread. Without `signals` it never comes.

    It is raised as SignalReceived where a learner looks: between two steps, so that no library is left in the middle
    of something. Whatever waits for longer is interrupted: again and again, as C code that calls Python may drop what
    is raised in it.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._armed = False

    def check(self) -> None:
        """Raise SignalReceived if a signal has come."""
        if self._number is not None:
            raise SignalReceived(self._number)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Take note of signals. Afterwards they have their former handlers."""
        before = {number: signal.signal(number, self._handle) for number in (*_ENDING, signal.SIGALRM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Raise SignalReceived in what runs inside. Outside, as while it cleans up, signals disturb nothing."""
        self._armed = True
        try:
            self.check()
            yield
        finally:
            self._armed = False
            if self._number is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in _ENDING:
            if self._number is None:
                self._number = number
                self._come_again(WAIT_SECONDS)
        elif self._number is not None and self._armed:
            if may_not_raise(frame):
                self._come_again(AGAIN_SECONDS)
            else:
                self._come_again(WAIT_SECONDS)
                raise SignalReceived(self._number)

    def _come_again(self, seconds: float) -> None:
        if self._armed:
            signal.setitimer(signal.ITIMER_REAL, seconds)
