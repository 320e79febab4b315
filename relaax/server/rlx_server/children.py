"""The worker processes of an RLX server, from its point of view."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal

from relaax.server.rlx_server.exit_codes import EXIT_DONE, EXIT_TRAINING_FINISHED

_log = logging.getLogger(__name__)


class Children:
    """Who is there, who was let in, and how each ended."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._news_of: dict[int, int] = {}  # pid -> descriptor, -1 once its client was let in
        self._refusing: set[int] = set()
        self.training_finished = False
        """Whether a worker has heard from the parameter server that training is over."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return list(self._news_of)

    @property
    def serving(self) -> list[int]:
        """Process ids of the workers that serve a client, or will."""
        return [pid for pid in self._news_of if pid not in self._refusing]

    @property
    def handshakes(self) -> int:
        """How many workers have not let their client in yet."""
        return sum(news >= 0 for news in self._news_of.values())

    @property
    def refusing(self) -> int:
        """How many workers are there only to tell their clients why they are not let in."""
        return len(self._refusing)

    def add(self, pid: int, news: int, serves: bool = True) -> None:
        """A worker was started; `news` becomes readable when its client was let in.

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
                    self._note(pid, os.waitstatus_to_exitcode(status))
                continue
            self._news_of.clear()  # somebody else has reaped them
        return any_ended

    def _note(self, pid: int, code: int) -> None:
        if code == EXIT_TRAINING_FINISHED:
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
