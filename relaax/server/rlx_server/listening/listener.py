"""Accept connections and start a worker for each. Single-threaded; creates no gRPC object, runs no TensorFlow.

How it stays open to honest clients whatever others do:

- A connection gets a process when its whole hello has arrived (see `pending_connections`): a client that sends
  nothing, or a byte a second, takes no place from others.
- So a place among `max_handshakes` is held by computation, never by the client's pace: it is free as soon as the
  worker has let its client in or told it why not. A worker that then waits for its client to close is one of
  `children.MAX_LEAVING`; beyond that the oldest is killed.
- If there is no room for another worker, a client is told so by this process, unless it speaks TLS or WebSocket (see
  `say_no_room`): clients that try a full server again and again cost those it serves next to nothing.
- A first frame of an impossible length gets a process too, which answers it, but only after every whole hello, and
  with a quarter of the places.
- Over TLS a client has to send more before its hello. A worker that waits for that takes no place either; it is one
  of `children.MAX_STALLED`, and whether there is room for it is decided when the hello arrives. The same holds for
  WebSocket. With many such workers, whole hellos come first, then clients of the network with the fewest of them.
- A client that has sent a hello and does not read its welcome loses its worker soon if others wait for the place (see
  `UnprovenClients`). If there are many such clients, the last to come is served first (see `AdmissionQueue`).
- An address whose handshakes fail repeatedly gets no process for a while (see `relaax.server.security.strikes`).
- Queues are bounded: beyond `MAX_WAITING` connections, or without a descriptor, the longest waiting one is dropped
  for a new one, first among those that have not sent their hello.
- Each turn does bounded work: it accepts at most 64 connections, handles the events that the kernel reports, and
  starts at most `STARTS` workers.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import selectors
import signal
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Protocol

from relaax.metrics.rate_limited_log import RateLimitedLog
from relaax.server.address import is_loopback
from relaax.server.rlx_server.clients.accounts import OPEN, Authentication
from relaax.server.rlx_server.clients.claims import Claims
from relaax.server.rlx_server.listening.admission import (
    FREE,
    Admission,
    AdmissionQueue,
    UnprovenClients,
    say_no_room,
    turn_away,
)
from relaax.server.rlx_server.listening.children import Children
from relaax.server.rlx_server.listening.pending_connections import PendingConnection, PendingConnections
from relaax.server.rlx_server.listening.status import StatusLine
from relaax.server.rlx_server.temporary_folders import WorkerFolders
from relaax.server.security.strikes import Strikes

_log = logging.getLogger(__name__)

MAX_WAITING = 1024
TICK_SECONDS = 0.5
STOP_SECONDS = 5.0
LINGER_SECONDS = 2.0
FORK_RETRY_SECONDS = 1.0
STARTS = 2
"""Workers that are started in a turn: before the next ones, the server looks who else has come."""


class Spawner(Protocol):
    """Start workers (see `relaax.server.rlx_server.workers.spawners`, which this module must not import)."""

    def spawn(
        self, sock: socket.socket, refusal: str | None, training_finished: bool, close_in_child: Callable[[], None]
    ) -> tuple[int, int]: ...

    def stop_workers(self) -> None: ...


class Listener:
    """The server's loop. It peeks at the first bytes of connections, and reads nothing but what it refuses."""

    def __init__(
        self,
        sock: socket.socket,
        spawner: Spawner,
        admission: Admission,
        folders: WorkerFolders,
        claims: Claims,
        *,
        handshake_timeout: float,
        max_handshakes: int,
        status: StatusLine | None = None,
        authentication: Authentication = OPEN,
        max_failed_handshakes: int = 20,
        drain: float = 0.0,
    ) -> None:
        """`drain`: seconds from SIGTERM in which connections may end at the end of an episode."""
        sock.setblocking(False)
        self._sock = sock
        self._spawner = spawner
        self._admission = admission
        self._folders = folders
        self._max_handshakes = max_handshakes
        self._drain_seconds = drain
        self._max_wrong = max(1, max_handshakes // 4)
        self._selector = selectors.DefaultSelector()
        self._arrivals = PendingConnections(self._selector, handshake_timeout, authentication.tls is not None)
        self._authentication = authentication
        self._strikes = Strikes(max_failed_handshakes)
        self._whole = AdmissionQueue()  # have sent a hello
        self._more = False  # whether another worker can be started at once
        self._wrong: deque[socket.socket] = deque()  # have sent something else, and wait for the refusal
        self._max_waiting = min(MAX_WAITING, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        places = UnprovenClients(max(FREE, max_handshakes))
        self._claims = claims
        self._children = Children(self._selector, folders.remove, self._note_failure, self._refusal, places, claims)
        self._wake_read, self._wake_write = socket.socketpair()
        self._signal: int | None = None
        self._begun = self._quiet_since = time.monotonic()
        self._status = status
        self._counts: Counter[str] = Counter()
        self._complain = RateLimitedLog(_log)

    def run(self) -> int | None:
        """Run until SIGTERM or SIGINT, and return its number, or until training has finished, and return None."""
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._selector.register(self._sock, selectors.EVENT_READ)
        try:
            while self._signal is None and not self._training_is_over():
                self._turn()
            ended_by = self._signal
            if ended_by == signal.SIGTERM and self._drain_seconds:
                self._drain()
            return ended_by
        finally:
            self._stop()

    def _drain(self) -> None:
        """Accept nobody, and let connections end at the end of an episode. Another signal cuts that short."""
        self._signal = None
        self._selector.unregister(self._sock)
        self._sock.close()
        if self._status is not None:
            self._status.tell(self._sample(serving=False))
        while self._arrivals.drop_oldest() or self._whole.drop_oldest():
            pass
        while self._wrong:
            self._wrong.popleft().close()
        self._claims.meters.send_away()
        serving = len(self._children.serving)
        if serving:
            _log.info(
                "about to stop: %d connections end with their episodes, within %g s", serving, self._drain_seconds
            )
        until = time.monotonic() + self._drain_seconds
        while self._children.pids and self._is_undisturbed() and time.monotonic() < until:
            self._turn()

    def _is_undisturbed(self) -> bool:
        return self._signal is None

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signal = number

    def _training_is_over(self) -> bool:
        idle = not self._children.pids and not self._whole
        return self._children.training_finished and idle and time.monotonic() - self._quiet_since > LINGER_SECONDS

    def _turn(self) -> None:
        children = self._children
        place_due = children.unproven.wait(children.handshakes) if self._whole else 0.0
        timeout = 0.0 if self._more else min(TICK_SECONDS, self._arrivals.due, place_due or TICK_SECONDS)
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._sock:
                self._accept()
            elif key.fileobj is self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    self._wake_read.recv(4096)
            elif isinstance(key.fileobj, socket.socket):
                if key.fileobj in self._arrivals:  # it may have made room for another in this turn
                    self._sort(key.fileobj, self._arrivals.look(key.fileobj))
            else:
                self._children.reports(key.fd)
        if self._children.reap():
            self._quiet_since = time.monotonic()
        for sock, arrival in self._arrivals.look_again():
            self._sort(sock, arrival)
        self._arrivals.expire()
        for pid in self._claims.look():
            children.revoke(pid)
        self._more = all(self._start_next() for _ in range(STARTS))
        if self._status is not None and self._status.due:
            self._status.tell(self._sample(serving=True))

    def _sample(self, serving: bool) -> dict[str, Any]:
        """Return a sample for the status port (see `status_process`)."""
        children, counts = self._children, self._children.counts
        return {
            "serving": serving,
            "uptime_seconds": time.monotonic() - self._begun,
            "workers": len(children.serving),
            "handshaking": children.handshakes,
            "free_places": self._admission.free_places(children.serving) if serving else 0,
            "waiting": {"hello": len(self._arrivals), "worker": len(self._whole) + len(self._wrong)},
            "connections": self._counts["accepted"],
            "forks": counts["forks"],
            "admissions": counts["admissions"],
            "refusals": {
                **self._admission.refused,
                "handshake": counts["handshake_failures"],
                "malformed": self._counts["wrong"],
                "silent": self._arrivals.expired,
                "crowded_out": self._counts["crowded_out"] + counts["crowded_out"],
                "turned_away": self._counts["turned_away"],
            },
            "worker_failures": counts["worker_failures"],
            "training_finished": children.training_finished,
            "clients": self._claims.sample(),
        }

    def _accept(self) -> None:
        """Accept new connections; beyond the bound, or without a descriptor, the longest waiting one is dropped."""
        for _ in range(64):
            try:
                sock, name = self._sock.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._make_room():
                    continue
                return
            if self._strikes.is_blocked(name[0]):
                self._counts["turned_away"] += 1
                turn_away(sock, self._authentication.tls is not None)
                continue
            if len(self._arrivals) + len(self._whole) + len(self._wrong) >= self._max_waiting:
                self._make_room()
            self._counts["accepted"] += 1
            self._arrivals.add(sock)

    def _note_failure(self, host: str) -> None:
        """Count a failed handshake.

        On loopback it counts only if clients must authenticate: otherwise a test of the protocol would end itself.
        """
        if (self._authentication.asks or not is_loopback(host)) and self._strikes.add(host):
            limit = self._strikes.limit
            _log.warning("%d handshakes from %s failed in a minute: it is turned away for a minute", limit, host)

    def _sort(self, sock: socket.socket, arrival: PendingConnection) -> None:
        if arrival in (PendingConnection.WHOLE, PendingConnection.LAYERED):
            self._whole.add(sock, arrival)
        elif arrival is PendingConnection.WRONG:
            self._wrong.append(sock)

    def _make_room(self) -> bool:
        if not self._arrivals.drop_oldest():
            if self._wrong:
                self._wrong.popleft().close()
            elif not self._whole.drop_oldest():
                return False
        self._counts["crowded_out"] += 1
        return True

    def _start_next(self) -> bool:
        """Start a worker for the next client; return whether there was one, and a place for its worker."""
        unproven, handshakes = self._children.unproven, self._children.handshakes
        if handshakes >= self._max_handshakes:
            return False
        layered = not self._children.crowded
        if unproven.wait(handshakes) <= 0 and (sock := self._next(layered)) is not None:
            arrival = self._whole.remove(sock)  # before another makes room, whose client may return at once
            self._children.take_place()
            if not self._start(sock, arrival):
                self._whole.add(sock, arrival)
                return False
            return True
        if not self._wrong or not layered or self._children.refusing >= self._max_wrong:
            return False
        if not self._start(self._wrong[0], PendingConnection.WRONG):
            return False
        self._wrong.popleft()
        return True

    def _next(self, layered: bool) -> socket.socket | None:
        """Return the connection to serve now. `layered`: whether it may be one whose hello comes in a layer.

        If many workers wait for clients with layers, whole hellos come first.
        """
        stalled = self._children.stalled
        crowd = self._children.unproven.crowd(self._children.handshakes) + stalled
        whole = self._whole.next(crowd, layered=False) if stalled or not layered else None
        return self._whole.next(crowd) if whole is None and layered else whole

    def _start(self, sock: socket.socket, arrival: PendingConnection) -> bool:
        """Start a worker, or say that there is no room; return False if the system could not: to be tried again."""
        try:
            host = sock.getpeername()[0]
        except OSError:  # it has disconnected
            sock.close()
            return True
        wrong = arrival is PendingConnection.WRONG
        refusal = None if wrong else self._refusal_or_place()
        finished = self._children.training_finished
        if refusal is not None and arrival is PendingConnection.WHOLE and not finished:
            say_no_room(sock, refusal)
            return True
        try:
            pid, reports = self._spawner.spawn(sock, refusal, finished, self._close_in_child(sock))
        except OSError as error:
            if error.errno == errno.EMFILE and self._arrivals.drop_oldest():
                return False
            _log.error("no worker could be started (%s); trying again", error)
            time.sleep(FORK_RETRY_SECONDS)
            return False
        self._children.add(pid, reports, serves=refusal is None and not wrong, host=host)
        self._counts["wrong"] += wrong
        self._quiet_since = time.monotonic()
        sock.close()
        return True

    def _refusal_or_place(self) -> str | None:
        """Return why there is no room for one more worker, after an unproven client has made room if possible."""
        children = self._children
        if self._admission.refusal(children.serving, counts=False) is not None:
            children.make_room()
        return self._refusal(children.serving)

    def _refusal(self, workers: list[int]) -> str | None:
        refusal = self._admission.refusal(workers)
        if refusal is not None:
            self._complain("refused a connection: %s", refusal)
        return refusal

    def _close_in_child(self, own: socket.socket) -> Callable[[], None]:
        def close() -> None:
            for sock in (self._sock, self._wake_read, self._wake_write, *self._arrivals, *self._whole, *self._wrong):
                if sock is not own:
                    sock.close()
            if self._status is not None:
                self._status.close_in_child()
            self._children.close_descriptors()
            self._selector.close()

        return close

    def _stop(self) -> None:
        """Stop accepting, tell the workers to end, kill those that do not, and close the status port."""
        signal.set_wakeup_fd(-1)
        if self._status is not None:
            self._status.tell(self._sample(serving=False))
        for sock in (self._sock, *self._arrivals, *self._whole, *self._wrong):
            sock.close()
        self._spawner.stop_workers()
        deadline = time.monotonic() + STOP_SECONDS
        while self._children.pids and time.monotonic() < deadline:
            self._children.reap()
            time.sleep(0.01)
        for pid in self._children.pids:
            _log.warning("worker %d does not end and is killed", pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while self._children.pids:
            self._children.reap(block=True)
        self._folders.close()
        if self._status is not None:
            self._status.stop()
        self._children.close_descriptors()
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()
