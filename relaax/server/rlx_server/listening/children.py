"""The worker processes of an RLX server, as the server sees them."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from relaax.server.rlx_server import worker_reports as reports
from relaax.server.rlx_server.child_process import EXIT_DONE, EXIT_TRAINING_FINISHED
from relaax.server.rlx_server.clients.claims import Claims
from relaax.server.rlx_server.listening.admission import UnprovenClients
from relaax.server.security.strikes import network_of

_log = logging.getLogger(__name__)

MAX_LEAVING = 16
"""Workers that wait for clients to close that were told why they are not let in. Beyond it the oldest is killed."""
MAX_STALLED = 64
"""Workers that wait for a client to go on with TLS. Beyond it the oldest is killed."""
STALL_SECONDS = 1.0
"""The time that each of these has at least: with so many, no other worker is started before."""


@dataclass(slots=True)
class Child:
    """One worker process. `host` is its client's address; times are those of `time.monotonic`."""

    pid: int
    host: str
    line: int
    """The server's end of the line to the worker, -1 once it is closed."""
    refusing: bool
    """Whether it only tells its client why it is not let in."""
    stalled_since: float | None = None
    """Since when it waits for its client to go on with TLS."""
    leaving_since: float | None = None
    """Since when it waits for a client that is no longer served to close."""
    cut_off: bool = False
    """Whether the server has killed it."""

    @property
    def serving(self) -> bool:
        """Whether it serves a client, or may do so later."""
        return not self.refusing and self.leaving_since is None and self.stalled_since is None

    def close(self) -> None:
        """Close the line."""
        if self.line >= 0:
            os.close(self.line)
            self.line = -1


class Children:
    """The worker processes of this server: which of them serve a client, and how each of them ended."""

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

        `failed` is called with the host of each client that broke the protocol or failed to authenticate. `refusal`
        returns why there is no room beside the workers with these process ids, or None if there is room. `claims`
        decides on what clients claim; it may be left out if no worker reports a claim.
        """
        self._selector = selector
        self._ended = ended
        self._failed = failed
        self._refusal = refusal
        self._claims = claims
        self._by_pid: dict[int, Child] = {}
        self._by_line: dict[int, Child] = {}  # those that have more to report
        self.unproven = UnprovenClients() if unproven is None else unproven
        """Workers that have let in clients which have not yet proved that they read."""
        self.counts: Counter[str] = Counter()
        """Forks, admissions, handshake failures, worker failures and unproven workers that were ended."""
        self.training_finished = False
        """Whether a worker has heard from the parameter server that training is over."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return list(self._by_pid)

    @property
    def serving(self) -> list[int]:
        """Process ids of the workers that serve a client, or may do so later."""
        return [child.pid for child in self._by_pid.values() if child.serving]

    @property
    def handshakes(self) -> int:
        """The number of workers that are still deciding whether to let their client in, not counting stalled ones."""
        undecided = (child for child in self._by_line.values() if child.stalled_since is None)
        return sum(child.pid not in self.unproven for child in undecided)

    @property
    def refusing(self) -> int:
        """The number of these that only tell their clients why they are not let in."""
        return sum(child.refusing and child.stalled_since is None for child in self._by_line.values())

    @property
    def stalled(self) -> Counter[str]:
        """The workers that wait for a client to complete its layers, by network; empty if they are few."""
        hosts = [child.host for child in self._by_line.values() if child.stalled_since is not None]
        return Counter(map(network_of, hosts)) if len(hosts) > MAX_STALLED // 4 else Counter()

    @property
    def crowded(self) -> bool:
        """Whether one more worker could end one that has only just begun to wait for its client to complete its layers.

        The worker of a whole hello does not wait for its client.
        """
        since = [child.stalled_since for child in self._by_line.values() if child.stalled_since is not None]
        if not since or len(since) + self.handshakes < MAX_STALLED:
            return False
        return time.monotonic() - min(since) < STALL_SECONDS

    def take_place(self) -> None:
        """Prepare for one more worker: tell another one to end if it has to make room."""
        self._end_unproven(self.unproven.take(self.handshakes))

    def make_room(self) -> bool:
        """Tell a worker with an unproven client to end, if one has had its time. Return whether there was one."""
        return self._end_unproven(self.unproven.loser())

    def _end_unproven(self, pid: int | None) -> bool:
        if pid is None:
            return False
        self.counts["crowded_out"] += 1
        self._leaves(self._by_pid[pid])
        return True

    def _leaves(self, child: Child) -> None:
        """Stop serving the client of this worker; the client gets a moment to close."""
        child.leaving_since = time.monotonic()
        self.unproven.leave(child.pid)
        if self._claims is not None:
            self._claims.leave(child.pid)
        self._close(child)

    def revoke(self, pid: int) -> None:
        """Tell a worker that its client may no longer be served."""
        child = self._by_pid.get(pid)
        if child is not None and child.line >= 0:
            reports.revoke(child.line)

    def add(self, pid: int, line: int, serves: bool = True, host: str = "") -> None:
        """Add a worker that was started with the other end of `line`, for a client at `host`.

        One that does not serve only tells its client why, and takes up no room.
        """
        child = self._by_pid[pid] = self._by_line[line] = Child(pid, host, line, refusing=not serves)
        self.counts["forks"] += 1
        self._selector.register(child.line, selectors.EVENT_READ)

    def reports(self, line: int) -> None:
        """Read a report from the line `line`, which has become readable."""
        child = self._by_line.get(line)
        if child is not None:
            word = b""
            with contextlib.suppress(ConnectionResetError):  # it died before it read what it was answered
                word = os.read(line, 1)
            self._hear(child, word)

    def _hear(self, child: Child, word: bytes) -> None:
        if word == reports.WAITS:
            child.stalled_since = time.monotonic()
            stalled = [other for other in self._by_line.values() if other.stalled_since is not None]
            if len(stalled) > MAX_STALLED:
                oldest = min(stalled, key=lambda other: other.stalled_since or 0.0)
                self._failed(oldest.host)
                self._kill(oldest)
            return
        child.stalled_since = None
        if word == reports.FAILED:
            if child.pid not in self.unproven:  # a mistake after the handshake is not one of the handshake
                self._failed(child.host)
        elif word == reports.ADMITTED:
            self.counts["admissions"] += 1
            self.unproven.admit(child.pid, child.host)
        elif word == reports.GREETED:
            self.unproven.greet(child.pid)
        elif word == reports.RESUMES:
            self._answer(child)
        elif word == reports.CLAIMS:
            self._decide(child)
        elif word == reports.PROVEN:
            self.unproven.leave(child.pid)
            self._listen_no_more(child)
        else:
            self.counts["handshake_failures"] += not child.refusing and child.pid not in self.unproven
            self._leaves(child)

    def _answer(self, child: Child) -> None:
        """Tell a worker that had to wait whether there is room for it now, unless it is to refuse anyway."""
        refusal = None
        if not child.refusing:
            refusal = self._refusal([pid for pid in self.serving if pid != child.pid])
            child.refusing = refusal is not None
        reports.answer(child.line, refusal)

    def _decide(self, child: Child) -> None:
        """Tell a worker whether its client gets what it claims."""
        assert self._claims is not None
        decision = self._claims.decide(child.pid, child.host, reports.claim_at(child.line), self.make_room)
        child.refusing |= isinstance(decision, reports.ClaimRefusal)
        reports.answer_claim(child.line, decision)

    def _listen_no_more(self, child: Child) -> None:
        if self._by_line.pop(child.line, None) is not None:
            self._selector.unregister(child.line)

    def _close(self, child: Child) -> None:
        self._listen_no_more(child)
        child.close()

    def reap(self, block: bool = False) -> bool:
        """Collect the workers that have ended. Return whether there were any."""
        any_ended = False
        while self._by_pid:
            try:
                pid, status = os.waitpid(-1, 0 if block and not any_ended else os.WNOHANG)
            except ChildProcessError:  # something else has collected them
                for child in list(self._by_pid.values()):
                    self._remove(child)
                break
            if pid == 0:
                break
            any_ended = True
            if pid in self._by_pid:
                self._note(self._by_pid[pid], os.waitstatus_to_exitcode(status))
                self._remove(self._by_pid[pid])
        self._kill_oldest_leaving()
        return any_ended

    def _remove(self, child: Child) -> None:
        self._close(child)
        del self._by_pid[child.pid]
        self.unproven.leave(child.pid)
        if self._claims is not None:
            self._claims.bury(child.pid)
        self._ended(child.pid)

    def _kill_oldest_leaving(self) -> None:
        """Kill the oldest of the workers that wait for their clients to close, if there are too many."""
        leaving = [child for child in self._by_pid.values() if child.leaving_since is not None and not child.cut_off]
        leaving.sort(key=lambda child: child.leaving_since or 0.0)
        for child in leaving[: max(0, len(leaving) - MAX_LEAVING)]:
            self._kill(child)

    def _kill(self, child: Child) -> None:
        child.cut_off = True
        child.stalled_since = None
        os.kill(child.pid, signal.SIGKILL)  # the process id is not used again before it is collected

    def _note(self, child: Child, code: int) -> None:
        """Count and log how a worker ended, unless the server killed it."""
        if child.cut_off:
            return
        if code == EXIT_TRAINING_FINISHED:
            if not self.training_finished:
                _log.info("training has finished")
            self.training_finished = True
        elif code == EXIT_DONE:
            _log.debug("worker %d has ended", child.pid)
        else:
            self.counts["worker_failures"] += 1
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "failed"
            _log.error("worker %d %s", child.pid, how)

    def close_descriptors(self) -> None:
        """Close the lines to all workers without forgetting the workers."""
        for child in self._by_pid.values():
            child.close()
