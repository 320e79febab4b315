"""The worker processes of an RLX server, from its point of view."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import time
from collections import Counter
from collections.abc import Callable

from relaax.server.rlx_server.claims import Claims
from relaax.server.rlx_server.exit_codes import EXIT_DONE, EXIT_TRAINING_FINISHED
from relaax.server.rlx_server.unproven_clients import UnprovenClients
from relaax.server.rlx_server.worker_reports import (
    ADMITTED,
    CLAIMS,
    FAILED,
    GREETED,
    PROVEN,
    RESUMES,
    WAITS,
    ClaimRefusal,
    answer,
    answer_claim,
    claim_at,
    revoke,
)

_log = logging.getLogger(__name__)

MAX_LEAVING = 16
"""Workers that wait for a client to close, whom they have told why it is not let in. Past it the oldest is ended."""
MAX_STALLED = 64
"""Workers that wait for a client to go on with TLS. Past it the oldest is ended."""
STALL_SECONDS = 1.0
"""What each of these gets at least where there are so many: no more are to be started before."""


class Children:
    """Who is there, who was let in, and how each ended."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        ended: Callable[[int], None] = lambda _: None,
        failed: Callable[[str], None] = lambda _: None,
        refusal: Callable[[list[int]], str | None] = lambda _: None,
        unproven: UnprovenClients | None = None,
        claims: Claims | None = None,
    ) -> None:
        """`ended` is called with the process id of each worker that has ended.

        `failed` is called with the host of each client that broke the protocol, or did not prove that it may come in.
        `refusal` says why there is no room beside the workers with these process ids; None where there is.
        `claims` decides about what clients claim; without it nobody may.
        """
        self._selector = selector
        self._ended = ended
        self._failed = failed
        self._refusal = refusal
        self._claims = claims
        self._host_of: dict[int, str] = {}
        self._line_of: dict[int, int] = {}  # pid -> descriptor of one that has said all, and may be told something
        self._stalled: dict[int, float] = {}  # pid -> since when; the oldest comes first
        self._reports_of: dict[int, int] = {}  # pid -> descriptor, -1 once it has said what it has to say
        self._refusing: set[int] = set()
        self._leaving: dict[int, None] = {}  # the oldest comes first
        self._cut_off: set[int] = set()
        self.unproven = UnprovenClients() if unproven is None else unproven
        """Workers that have let their clients in, who have yet to prove that they read."""
        self.counts: Counter[str] = Counter()
        """Of forks, admissions, handshake failures, worker failures and unproven workers that were ended so far."""
        self.training_finished = False
        """Whether a worker has heard from the parameter server that training is over."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return list(self._reports_of)

    @property
    def serving(self) -> list[int]:
        """Process ids of the workers that serve a client, or may yet."""
        away = (self._refusing, self._leaving, self._stalled)
        return [pid for pid in self._reports_of if not any(pid in pids for pids in away)]

    @property
    def handshakes(self) -> int:
        """How many workers do not know yet whether they let their client in, and do not just wait for it."""
        elsewhere = (self._stalled, self.unproven)
        return sum(
            reports >= 0 and not any(pid in pids for pids in elsewhere) for pid, reports in self._reports_of.items()
        )

    @property
    def refusing(self) -> int:
        """How many of these are there only to tell their clients why they are not let in."""
        return sum(self._reports_of.get(pid, -1) >= 0 for pid in self._refusing if pid not in self._stalled)

    @property
    def crowded(self) -> bool:
        """Whether one more worker would end one that has hardly begun to wait for its client to go on with TLS."""
        if len(self._stalled) + self.handshakes < MAX_STALLED or not self._stalled:
            return False
        return time.monotonic() - next(iter(self._stalled.values())) < STALL_SECONDS

    def take_place(self) -> None:
        """One more worker is about to be started; one that makes room for it, if need be, is told to end."""
        self._end_unproven(self.unproven.take(self.handshakes))

    def make_room(self) -> bool:
        """Tell a worker whose client has proved nothing to end, if one has had its time; whether there was one."""
        return self._end_unproven(self.unproven.loser())

    def _end_unproven(self, pid: int | None) -> bool:
        if pid is None:
            return False
        self.counts["crowded_out"] += 1
        self._leaves(pid)
        return True

    def _leaves(self, pid: int) -> None:
        """Its client is served no more, and has a moment to close."""
        self._leaving[pid] = None
        self.unproven.leave(pid)
        if self._claims is not None:
            self._claims.leave(pid)
        self._close(pid)

    def revoke(self, pid: int) -> None:
        """Tell a worker that its client is let in no more."""
        line = self._line_of.get(pid, self._reports_of.get(pid, -1))
        if line >= 0:
            revoke(line)

    def add(self, pid: int, reports: int, serves: bool = True, host: str = "") -> None:
        """A worker was started; `reports` becomes readable when its client was let in, or was not.

        One that does not serve is there to tell its client why, and takes up no room. `host`: the client's.
        """
        self._reports_of[pid] = reports
        self._host_of[pid] = host
        self.counts["forks"] += 1
        if not serves:
            self._refusing.add(pid)
        self._selector.register(reports, selectors.EVENT_READ)

    def reports(self, descriptor: int) -> None:
        """`descriptor` has become readable."""
        for pid, reports in self._reports_of.items():
            if reports == descriptor:
                word = b""
                with contextlib.suppress(ConnectionResetError):  # it died before it read what it was answered
                    word = os.read(reports, 1)
                self._hear(pid, word)
                return

    def _hear(self, pid: int, word: bytes) -> None:
        if word == WAITS:
            self._stalled[pid] = time.monotonic()
            if len(self._stalled) > MAX_STALLED:
                self._cut_off_stalled()
            return
        self._stalled.pop(pid, None)
        if word == FAILED:
            if pid not in self.unproven:  # a mistake after the handshake is none of it
                self._failed(self._host_of[pid])
        elif word == ADMITTED:
            self.counts["admissions"] += 1
            self.unproven.admit(pid, self._host_of[pid])
        elif word == GREETED:
            self.unproven.greet(pid)
        elif word == RESUMES:
            self._answer(pid)
        elif word == CLAIMS:
            self._decide(pid)
        elif word == PROVEN:
            self.unproven.leave(pid)
            self._selector.unregister(self._reports_of[pid])
            self._line_of[pid], self._reports_of[pid] = self._reports_of[pid], -1
        else:
            self.counts["handshake_failures"] += pid not in self._refusing and pid not in self.unproven
            self._leaves(pid)

    def _answer(self, pid: int) -> None:
        """Whether there is room for a worker that took none while it waited. One that is to refuse knows it already."""
        refusal = None
        if pid not in self._refusing:
            refusal = self._refusal([other for other in self.serving if other != pid])
            if refusal is not None:
                self._refusing.add(pid)
        answer(self._reports_of[pid], refusal)

    def _decide(self, pid: int) -> None:
        """Whether the client may have what it claims."""
        assert self._claims is not None
        decision = self._claims.decide(pid, self._host_of[pid], claim_at(self._reports_of[pid]), self.make_room)
        if isinstance(decision, ClaimRefusal):
            self._refusing.add(pid)
        answer_claim(self._reports_of[pid], decision)

    def _cut_off_stalled(self) -> None:
        pid = next(iter(self._stalled))
        self._failed(self._host_of[pid])
        self._kill(pid)

    def _close(self, pid: int) -> None:
        reports = self._reports_of[pid]
        if reports >= 0:
            self._selector.unregister(reports)
            os.close(reports)
            self._reports_of[pid] = -1
        line = self._line_of.pop(pid, -1)
        if line >= 0:
            os.close(line)

    def reap(self, block: bool = False) -> bool:
        """Bury those that have ended; whether there were any."""
        any_ended = False
        while self._reports_of:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(-1, 0 if block and not any_ended else os.WNOHANG)
                if pid == 0:
                    break
                any_ended = True
                if pid in self._reports_of:
                    self._close(pid)
                    del self._reports_of[pid]
                    self._refusing.discard(pid)
                    self._leaving.pop(pid, None)
                    self._stalled.pop(pid, None)
                    self.unproven.leave(pid)
                    self._host_of.pop(pid, None)
                    self._note(pid, os.waitstatus_to_exitcode(status))
                    self._bury(pid)
                continue
            for pid in list(self._reports_of):
                self.unproven.leave(pid)
                self._close(pid)
                self._bury(pid)
            forgotten = (self._reports_of, self._refusing, self._leaving, self._cut_off, self._stalled, self._host_of)
            for each in forgotten:
                each.clear()  # somebody else has reaped them
        self._cut_off_oldest()
        return any_ended

    def _bury(self, pid: int) -> None:
        if self._claims is not None:
            self._claims.bury(pid)
        self._ended(pid)

    def _cut_off_oldest(self) -> None:
        """A client that was told may take its time, but not when many do."""
        while len(self._leaving) > MAX_LEAVING:
            self._kill(next(iter(self._leaving)))

    def _kill(self, pid: int) -> None:
        self._leaving.pop(pid, None)
        self._stalled.pop(pid, None)
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
            self.counts["worker_failures"] += 1
            _log.error("worker %d was ended by %s", pid, signal.Signals(-code).name)
        elif code != EXIT_DONE:
            self.counts["worker_failures"] += 1
            _log.error("worker %d failed", pid)
        else:
            _log.debug("worker %d has ended", pid)

    def close_descriptors(self) -> None:
        """Close what this object holds open, without forgetting the workers."""
        for descriptor in (*self._reports_of.values(), *self._line_of.values()):
            if descriptor >= 0:
                os.close(descriptor)
