"""The server's records of its worker processes: reports, decisions, and exits."""

from __future__ import annotations

import contextlib
import logging
import os
import select
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

MAX_CLOSING = 16
"""Maximum workers that wait for a refused client to close. Beyond it the oldest is killed."""
MAX_STALLED = 64
"""Maximum workers that wait for a client to complete TLS or WebSocket. Beyond it the oldest is killed."""
STALL_SECONDS = 1.0
"""Minimum time that a stalled worker gets. No worker is started that could replace a stalled one earlier."""


@dataclass(slots=True)
class Child:
    """One worker process. `host` is the address of its client. Times are values of `time.monotonic`."""

    pid: int
    host: str
    line: int
    """Descriptor of the server's end of the report sockets; -1 once it is closed."""
    refusing: bool
    """Whether the worker only sends its client a refusal."""
    stalled_since: float | None = None
    """Time at which it began to wait for its client to complete TLS or WebSocket."""
    closing_since: float | None = None
    """Time at which the worker stopped serving its client. Since then it waits for the client to close."""
    killed: bool = False
    """Whether the server has killed it."""

    @property
    def serving(self) -> bool:
        """Whether the worker serves a client, or may do so later."""
        return not self.refusing and self.closing_since is None and self.stalled_since is None

    def close(self) -> None:
        if self.line >= 0:
            os.close(self.line)
            self.line = -1


class Children:
    """The worker processes of this server: the state of each, and counts of their exits."""

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

        `failed` is called with the address of each client that broke the protocol or failed to authenticate. `refusal`
        gets the process ids of other workers, and returns why there is no room for one more, or None. `claims` decides
        on claims of clients; it is required if workers report claims.
        """
        self._selector = selector
        self._ended = ended
        self._failed = failed
        self._refusal = refusal
        self._claims = claims
        self._by_pid: dict[int, Child] = {}
        self._by_line: dict[int, Child] = {}  # workers that may send more reports
        self.unproven = UnprovenClients() if unproven is None else unproven
        """Workers whose clients have not yet proved that they read."""
        self.counts: Counter[str] = Counter()
        """Forks, admissions, handshake failures, worker failures and evicted workers."""
        self.training_finished = False
        """Whether a worker has reported that training has finished."""

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
        """Number of workers, except stalled ones, that have neither admitted nor refused their client."""
        undecided = (child for child in self._by_line.values() if child.stalled_since is None)
        return sum(child.pid not in self.unproven for child in undecided)

    @property
    def refusing(self) -> int:
        """Number of workers, except stalled ones, that only send a refusal."""
        return sum(child.refusing and child.stalled_since is None for child in self._by_line.values())

    @property
    def stalled(self) -> Counter[str]:
        """Number of stalled workers by network; empty if they are at most a quarter of MAX_STALLED."""
        hosts = [child.host for child in self._by_line.values() if child.stalled_since is not None]
        return Counter(map(network_of, hosts)) if len(hosts) > MAX_STALLED // 4 else Counter()

    @property
    def crowded(self) -> bool:
        """Whether one more stalled worker could replace one that has waited less than STALL_SECONDS.

        A worker whose client has sent a whole hello does not stall, so it may be started in any case.
        """
        since = [child.stalled_since for child in self._by_line.values() if child.stalled_since is not None]
        if not since or len(since) + self.handshakes < MAX_STALLED:
            return False
        return time.monotonic() - min(since) < STALL_SECONDS

    def reserve_place(self) -> None:
        """Reserve a place for one more worker. If necessary, the worker of an unproven client is ended."""
        self._end_unproven(self.unproven.reserve(self.handshakes))

    def free_place(self) -> bool:
        """Tell a worker with an unproven client to end, if one may be evicted. Return whether one was evicted."""
        return self._end_unproven(self.unproven.choose_eviction())

    def _end_unproven(self, pid: int | None) -> bool:
        if pid is None:
            return False
        self.counts["crowded_out"] += 1
        self._stop_serving(self._by_pid[pid])
        return True

    def _stop_serving(self, child: Child) -> None:
        """Stop serving the client of this worker. The client gets a moment to close."""
        child.closing_since = time.monotonic()
        self.unproven.remove(child.pid)
        if self._claims is not None:
            self._claims.release(child.pid)
        self._close(child)

    def revoke(self, pid: int) -> None:
        """Tell a worker that its client's token was revoked."""
        child = self._by_pid.get(pid)
        if child is not None and child.line >= 0:
            reports.revoke(child.line)

    def add(self, pid: int, line: int, serves: bool = True, host: str = "") -> None:
        """Add a worker that was started for a client at `host`.

        `line`: the server's end of the report sockets. If not `serves`, the worker only sends a refusal and needs no
        room.
        """
        child = self._by_pid[pid] = self._by_line[line] = Child(pid, host, line, refusing=not serves)
        self.counts["forks"] += 1
        self._selector.register(child.line, selectors.EVENT_READ)

    def read_report(self, line: int) -> None:
        """Read a report from the descriptor `line`, which has become readable."""
        child = self._by_line.get(line)
        if child is not None:
            report = b""
            with contextlib.suppress(ConnectionResetError):  # it died before it read an answer
                report = os.read(line, 1)
            self._handle_report(child, report)

    def _handle_report(self, child: Child, report: bytes) -> None:
        if report == reports.STALLED:
            child.stalled_since = time.monotonic()
            stalled = [other for other in self._by_line.values() if other.stalled_since is not None]
            if len(stalled) > MAX_STALLED:
                oldest = min(stalled, key=lambda other: other.stalled_since or 0.0)
                self._failed(oldest.host)
                self._kill(oldest)
            return
        child.stalled_since = None
        if report == reports.FAILED:
            if child.pid not in self.unproven:  # a later mistake does not count as a failed handshake
                self._failed(child.host)
        elif report == reports.ADMITTED:
            self.counts["admissions"] += 1
            self.unproven.admit(child.pid, child.host)
        elif report == reports.WELCOMED:
            self.unproven.record_welcome(child.pid)
        elif report == reports.RESUMED:
            self._answer_resume(child)
        elif report == reports.CLAIMS:
            self._decide_claim(child)
        elif report == reports.PROVEN:
            self.unproven.remove(child.pid)
            self._stop_reading(child)
        else:
            self.counts["handshake_failures"] += not child.refusing and child.pid not in self.unproven
            self._stop_serving(child)

    def _answer_resume(self, child: Child) -> None:
        """Tell a stalled worker whether there is room for its client, unless it only sends a refusal."""
        refusal = None
        if not child.refusing:
            refusal = self._refusal([pid for pid in self.serving if pid != child.pid])
            child.refusing = refusal is not None
        reports.answer(child.line, refusal)

    def _decide_claim(self, child: Child) -> None:
        """Send a worker the decision on its client's claim."""
        assert self._claims is not None
        decision = self._claims.decide(child.pid, child.host, reports.claim_at(child.line), self.free_place)
        child.refusing |= isinstance(decision, reports.ClaimRefusal)
        reports.answer_claim(child.line, decision)

    def _stop_reading(self, child: Child) -> None:
        if self._by_line.pop(child.line, None) is not None:
            self._selector.unregister(child.line)

    def _close(self, child: Child) -> None:
        self._stop_reading(child)
        child.close()

    def reap(self, block: bool = False) -> bool:
        """Reap the workers that have ended. Return whether there were any."""
        any_ended = False
        while self._by_pid:
            try:
                pid, status = os.waitpid(-1, 0 if block and not any_ended else os.WNOHANG)
            except ChildProcessError:  # something else has reaped them
                for child in list(self._by_pid.values()):
                    self._remove(child)
                break
            if pid == 0:
                break
            any_ended = True
            if pid in self._by_pid:
                self._read_remaining(self._by_pid[pid])
                self._record_exit(self._by_pid[pid], os.waitstatus_to_exitcode(status))
                self._remove(self._by_pid[pid])
        self._kill_oldest_closing()
        return any_ended

    def _read_remaining(self, child: Child) -> None:
        """Read the reports that a worker sent before it ended."""
        poll = select.poll()
        if child.line in self._by_line:
            poll.register(child.line, select.POLLIN)
        while child.line in self._by_line and poll.poll(0):
            self.read_report(child.line)

    def _remove(self, child: Child) -> None:
        self._close(child)
        del self._by_pid[child.pid]
        self.unproven.remove(child.pid)
        if self._claims is not None:
            self._claims.remove(child.pid)
        self._ended(child.pid)

    def _kill_oldest_closing(self) -> None:
        """If more than MAX_CLOSING workers wait for their clients to close, kill the oldest of them."""
        closing = [child for child in self._by_pid.values() if child.closing_since is not None and not child.killed]
        closing.sort(key=lambda child: child.closing_since or 0.0)
        for child in closing[: max(0, len(closing) - MAX_CLOSING)]:
            self._kill(child)

    def _kill(self, child: Child) -> None:
        child.killed = True
        child.stalled_since = None
        os.kill(child.pid, signal.SIGKILL)  # the process id is not reused before it is reaped

    def _record_exit(self, child: Child, code: int) -> None:
        """Count and log how a worker ended, unless this object killed it."""
        if child.killed:
            return
        if code == EXIT_TRAINING_FINISHED:
            if not self.training_finished:
                _log.info("training has finished, as worker %d reported", child.pid)
            self.training_finished = True
        elif code == EXIT_DONE:
            _log.debug("worker %d ended as expected", child.pid)
        else:
            self.counts["worker_failures"] += 1
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "failed"
            _log.error("lost a worker process: worker %d %s", child.pid, how)

    def close_descriptors(self) -> None:
        """Close the report sockets of all workers, and keep the workers."""
        for child in self._by_pid.values():
            child.close()
