"""The worker processes of an RLX server, from its point of view."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
from collections.abc import Callable

from relaax.server.rlx_server.exit_codes import EXIT_DONE, EXIT_TRAINING_FINISHED
from relaax.server.rlx_server.news import ADMITTED

_log = logging.getLogger(__name__)

MAX_LEAVING = 16
"""Workers that wait for a client to close, whom they have told why it is not let in. Past it the oldest is ended."""


class Children:
    """Who is there, who was let in, and how each ended."""

    def __init__(self, selector: selectors.BaseSelector, ended: Callable[[int], None] = lambda _: None) -> None:
        """`ended` is called with the process id of each worker that has ended."""
        self._selector = selector
        self._ended = ended
        self._news_of: dict[int, int] = {}  # pid -> descriptor, -1 once it has said what it has to say
        self._refusing: set[int] = set()
        self._leaving: dict[int, None] = {}  # the oldest comes first
        self._cut_off: set[int] = set()
        self.training_finished = False
        """Whether a worker has heard from the parameter server that training is over."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return list(self._news_of)

    @property
    def serving(self) -> list[int]:
        """Process ids of the workers that serve a client, or may yet."""
        return [pid for pid in self._news_of if pid not in self._refusing and pid not in self._leaving]

    @property
    def handshakes(self) -> int:
        """How many workers do not know yet whether they let their client in."""
        return sum(news >= 0 for news in self._news_of.values())

    @property
    def refusing(self) -> int:
        """How many of these are there only to tell their clients why they are not let in."""
        return sum(self._news_of.get(pid, -1) >= 0 for pid in self._refusing)

    def add(self, pid: int, news: int, serves: bool = True) -> None:
        """A worker was started; `news` becomes readable when its client was let in, or was not.

        One that does not serve is there to tell its client why, and takes up no room.
        """
        self._news_of[pid] = news
        if not serves:
            self._refusing.add(pid)
        self._selector.register(news, selectors.EVENT_READ)

    def news(self, descriptor: int) -> None:
        """`descriptor` has become readable."""
        for pid, news in self._news_of.items():
            if news == descriptor:
                if os.read(news, len(ADMITTED)) != ADMITTED:
                    self._leaving[pid] = None
                self._close(pid)
                return

    def _close(self, pid: int) -> None:
        news = self._news_of[pid]
        if news >= 0:
            self._selector.unregister(news)
            os.close(news)
            self._news_of[pid] = -1

    def reap(self, block: bool = False) -> bool:
        """Bury those that have ended; whether there were any."""
        any_ended = False
        while self._news_of:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(-1, 0 if block and not any_ended else os.WNOHANG)
                if pid == 0:
                    break
                any_ended = True
                if pid in self._news_of:
                    self._close(pid)
                    del self._news_of[pid]
                    self._refusing.discard(pid)
                    self._leaving.pop(pid, None)
                    self._note(pid, os.waitstatus_to_exitcode(status))
                    self._ended(pid)
                continue
            for forgotten in (self._news_of, self._refusing, self._leaving, self._cut_off):
                forgotten.clear()  # somebody else has reaped them
        self._cut_off_oldest()
        return any_ended

    def _cut_off_oldest(self) -> None:
        """A client that was told may take its time, but not when many do."""
        while len(self._leaving) > MAX_LEAVING:
            pid = next(iter(self._leaving))
            del self._leaving[pid]
            self._cut_off.add(pid)
            os.kill(pid, signal.SIGKILL)  # it is there until it was buried

    def _note(self, pid: int, code: int) -> None:
        if pid in self._cut_off:
            self._cut_off.discard(pid)
        elif code == EXIT_TRAINING_FINISHED:
            if not self.training_finished:
                _log.info("training has finished")
            self.training_finished = True
        elif code < 0:
            _log.error("worker %d was ended by %s", pid, signal.Signals(-code).name)
        elif code != EXIT_DONE:
            _log.error("worker %d failed", pid)
        else:
            _log.debug("worker %d has ended", pid)

    def close_descriptors(self) -> None:
        """Close what this object holds open, without forgetting the workers."""
        for news in self._news_of.values():
            if news >= 0:
                os.close(news)
