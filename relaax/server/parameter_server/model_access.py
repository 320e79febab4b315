"""Control whether calls may use the model now."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator


class ModelUnavailable(Exception):
    """The model cannot be used for now. The message says what it waits for."""


class ModelAccess:
    """Access to the model: open, held for a moment, or closed with a sentence. Thread-safe.

    While it is held, updates wait and everything else passes; a hold ends by itself, so that who asked for it cannot
    stop training by vanishing. While it is closed nothing passes, and callers are told to come back.
    """

    def __init__(self, closed: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._closed = closed
        self._clock = clock
        self._held_until = -math.inf
        self._updates = 0
        self._readers = 0
        self._changed = threading.Condition()

    @property
    def closed(self) -> str:
        """The reason why nothing passes; empty if it is open."""
        return self._closed

    @contextlib.contextmanager
    def passing(self, *, update: bool = False) -> Iterator[None]:
        """Keep the access open while inside, for an update also not held. Raises ModelUnavailable."""
        with self._changed:
            while update and not self._closed and (left := self._held_until - self._clock()) > 0:
                self._changed.wait(left)
            if self._closed:
                raise ModelUnavailable(self._closed)
            if update:
                self._updates += 1
            else:
                self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                if update:
                    self._updates -= 1
                else:
                    self._readers -= 1
                self._changed.notify_all()

    def hold(self, seconds: float) -> bool:
        """Make updates wait for `seconds`. Return whether none is being applied any more."""
        with self._changed:
            self._held_until = self._clock() + seconds
            return self._changed.wait_for(lambda: not self._updates, seconds)

    def release(self) -> bool:
        """Let updates pass again. Return False if the hold had already expired: some may have passed since."""
        with self._changed:
            unbroken = self._clock() < self._held_until
            self._held_until = -math.inf
            self._changed.notify_all()
            return unbroken

    def close(self, sentence: str) -> None:
        """Let nothing pass, and wait until nobody is inside. Callers get `sentence`."""
        with self._changed:
            self._closed = sentence
            self._held_until = -math.inf
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._updates and not self._readers)

    def open(self) -> None:
        """Let everything pass."""
        with self._changed:
            self._closed = ""
            self._changed.notify_all()
