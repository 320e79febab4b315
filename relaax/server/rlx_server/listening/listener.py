"""Accept connections and start a worker for each. One thread; no gRPC object and no TensorFlow.

How the server stays available to honest clients:

- A connection gets a process only after its whole hello has arrived (see `pending_connections`). So a client that
  sends nothing, or one byte a second, takes no place from other clients.
- A place among `max_handshakes` is held only while the worker computes. It is free as soon as the worker has admitted
  its client or sent it a refusal. A worker that then waits for its client to close is one of `children.MAX_CLOSING`;
  beyond that number, the oldest is killed.
- If there is no room for another worker, this process itself sends the refusal, unless the client uses TLS or
  WebSocket (see `refuse_overloaded`). So clients that retry on a full server cost other clients almost nothing.
- A connection whose first frame has an impossible length also gets a process, which sends the refusal. Such connections
  are served after all whole hellos, and use at most a quarter of the places.
- Over TLS or WebSocket, a client must send more before its hello. A worker that waits for this takes no place. It is
  one of `children.MAX_STALLED`, and its admission is decided when the hello arrives. If there are many such workers,
  whole hellos are served first, then clients of the network with the fewest such workers.
- A client that does not read its welcome loses its worker soon if others wait for the place (see `UnprovenClients`).
  If there are many such clients, the newest is served first (see `AdmissionQueue`).
- An address whose handshakes fail repeatedly gets no process for a while (see `relaax.server.security.strikes`).
- Queues are bounded. Beyond `MAX_WAITING` connections, or if the process has no free descriptor, the oldest waiting
  connection is dropped for a new one. Connections without a whole hello are dropped first.
- Each turn of the loop does bounded work: it accepts at most 64 connections, handles the events that the kernel
  reports, and starts at most `MAX_STARTS_PER_TURN` workers.
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
    FREE_PLACES,
    Admission,
    AdmissionQueue,
    UnprovenClients,
    refuse_blocked_address,
    refuse_overloaded,
)
from relaax.server.rlx_server.listening.children import Children
from relaax.server.rlx_server.listening.pending_connections import PendingConnections, PendingState
from relaax.server.rlx_server.listening.status import StatusPipe
from relaax.server.rlx_server.temporary_folders import WorkerFolders
from relaax.server.security.strikes import Strikes

_log = logging.getLogger(__name__)

MAX_WAITING = 1024
TICK_SECONDS = 0.5
STOP_SECONDS = 5.0
LINGER_SECONDS = 2.0
FORK_RETRY_SECONDS = 1.0
MAX_STARTS_PER_TURN = 2
"""Maximum workers started in one turn. The server accepts new connections before it starts more."""


class Spawner(Protocol):
    """A starter of workers (see `relaax.server.rlx_server.workers.spawners`, which this module must not import)."""

    def spawn(
        self, sock: socket.socket, refusal: str | None, training_finished: bool, close_in_child: Callable[[], None]
    ) -> tuple[int, int]: ...

    def maintain(self, close_in_child: Callable[[], None]) -> None: ...

    def stop_workers(self) -> None: ...

    def close(self) -> None: ...


class Listener:
    """The server's loop. It peeks at the first bytes of connections, and reads only connections that it refuses."""

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
        status: StatusPipe | None = None,
        authentication: Authentication = OPEN,
        max_failed_handshakes: int = 20,
        drain: float = 0.0,
    ) -> None:
        """`drain`: seconds after SIGTERM during which connections may finish their episodes."""
        sock.setblocking(False)
        self._sock = sock
        self._spawner = spawner
        self._admission = admission
        self._folders = folders
        self._max_handshakes = max_handshakes
        self._drain_seconds = drain
        self._max_malformed = max(1, max_handshakes // 4)
        self._selector = selectors.DefaultSelector()
        self._pending = PendingConnections(self._selector, handshake_timeout, authentication.tls is not None)
        self._authentication = authentication
        self._strikes = Strikes(max_failed_handshakes)
        self._queue = AdmissionQueue()  # connections that have sent a whole hello
        self._can_start_more = False  # whether another worker can be started immediately
        self._malformed: deque[socket.socket] = deque()  # connections that wait for a worker, which refuses them
        self._max_waiting = min(MAX_WAITING, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        places = UnprovenClients(max(FREE_PLACES, max_handshakes))
        self._claims = claims
        self._children = Children(self._selector, folders.remove, self._note_failure, self._refusal, places, claims)
        self._wake_read, self._wake_write = socket.socketpair()
        self._signal: int | None = None
        self._started_at = self._quiet_since = time.monotonic()
        self._status = status
        self._serving = True  # False while connections are drained
        self._counts: Counter[str] = Counter()
        self._log_limited = RateLimitedLog(_log)

    def run(self) -> int | None:
        """Run until SIGTERM or SIGINT, and return the signal's number; return None if training has finished."""
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
                self._run_once()
            ended_by = self._signal
            if ended_by == signal.SIGTERM and self._drain_seconds:
                self._drain()
            return ended_by
        finally:
            self._stop()

    def _drain(self) -> None:
        """Stop accepting, and wait until connections have finished their episodes. A second signal ends the wait."""
        self._signal = None
        self._selector.unregister(self._sock)
        self._sock.close()
        self._serving = False
        if self._status is not None:
            self._status.send(self._sample())
        while self._pending.drop_oldest() or self._queue.drop_oldest():
            pass
        while self._malformed:
            self._malformed.popleft().close()
        self._claims.meters.disconnect_all()
        serving = len(self._children.serving)
        if serving:
            _log.info("draining %d connections: each ends with its episode, within %g s", serving, self._drain_seconds)
        until = time.monotonic() + self._drain_seconds
        while self._children.pids and self._is_uninterrupted() and time.monotonic() < until:
            self._run_once()

    def _is_uninterrupted(self) -> bool:
        return self._signal is None

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signal = number

    def _training_is_over(self) -> bool:
        idle = not self._children.pids and not self._queue
        return self._children.training_finished and idle and time.monotonic() - self._quiet_since > LINGER_SECONDS

    def _run_once(self) -> None:
        children = self._children
        place_due = children.unproven.delay(children.handshakes) if self._queue else 0.0
        timeout = 0.0 if self._can_start_more else min(TICK_SECONDS, self._pending.due, place_due or TICK_SECONDS)
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._sock:
                self._accept()
            elif key.fileobj is self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    self._wake_read.recv(4096)
            elif isinstance(key.fileobj, socket.socket):
                if key.fileobj in self._pending:  # it may have been dropped in this turn
                    self._route(key.fileobj, self._pending.check(key.fileobj))
            else:
                self._children.read_report(key.fd)
        if self._children.reap():
            self._quiet_since = time.monotonic()
        self._spawner.maintain(self._close_in_child(None))
        for sock, state in self._pending.check_unwatched():
            self._route(sock, state)
        self._pending.expire()
        for pid in self._claims.check():
            children.revoke(pid)
        self._can_start_more = all(self._start_next() for _ in range(MAX_STARTS_PER_TURN))
        if self._status is not None and self._status.due:
            self._status.send(self._sample())

    def _sample(self) -> dict[str, Any]:
        """Return a sample for the status port (see `status_process`)."""
        children, counts = self._children, self._children.counts
        return {
            "serving": self._serving,
            "uptime_seconds": time.monotonic() - self._started_at,
            "workers": len(children.serving),
            "handshaking": children.handshakes,
            "free_places": self._admission.free_places(children.serving) if self._serving else 0,
            "waiting": {"hello": len(self._pending), "worker": len(self._queue) + len(self._malformed)},
            "connections": self._counts["accepted"],
            "forks": counts["forks"],
            "admissions": counts["admissions"],
            "refusals": {
                **self._admission.refused,
                "handshake": counts["handshake_failures"],
                "malformed": self._counts["malformed"],
                "silent": self._pending.expired,
                "crowded_out": self._counts["crowded_out"] + counts["crowded_out"],
                "turned_away": self._counts["turned_away"],
            },
            "worker_failures": counts["worker_failures"],
            "training_finished": children.training_finished,
            "clients": self._claims.sample(),
        }

    def _accept(self) -> None:
        """Accept new connections. If the queues or the descriptors are full, drop the oldest waiting connection."""
        for _ in range(64):
            try:
                sock, name = self._sock.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._drop_one():
                    continue
                return
            if self._strikes.is_blocked(name[0]):
                self._counts["turned_away"] += 1
                refuse_blocked_address(sock, self._authentication.tls is not None)
                continue
            if len(self._pending) + len(self._queue) + len(self._malformed) >= self._max_waiting:
                self._drop_one()
            self._counts["accepted"] += 1
            self._pending.add(sock)

    def _note_failure(self, host: str) -> None:
        """Count a failed handshake, and log if it blocks the address.

        Failures on loopback count only if clients must authenticate, so that local protocol tests are not blocked.
        """
        if (self._authentication.is_required or not is_loopback(host)) and self._strikes.add(host):
            limit = self._strikes.limit
            _log.warning("%d handshakes from %s failed in a minute: this address is blocked for a minute", limit, host)

    def _route(self, sock: socket.socket, state: PendingState) -> None:
        if state in (PendingState.HELLO, PendingState.LAYERED):
            self._queue.add(sock, state)
        elif state is PendingState.MALFORMED:
            self._malformed.append(sock)

    def _drop_one(self) -> bool:
        if not self._pending.drop_oldest():
            if self._malformed:
                self._malformed.popleft().close()
            elif not self._queue.drop_oldest():
                return False
        self._counts["crowded_out"] += 1
        return True

    def _start_next(self) -> bool:
        """Start a worker for the next client. Return False if no client waits or no place is free."""
        unproven, handshakes = self._children.unproven, self._children.handshakes
        if handshakes >= self._max_handshakes:
            return False
        layered = not self._children.crowded
        if unproven.delay(handshakes) <= 0 and (sock := self._next_connection(layered)) is not None:
            state = self._queue.remove(sock)  # before `reserve_place`, whose evicted client may reconnect at once
            self._children.reserve_place()
            if not self._start_worker(sock, state):
                self._queue.add(sock, state)
                return False
            return True
        if not self._malformed or not layered or self._children.refusing >= self._max_malformed:
            return False
        if not self._start_worker(self._malformed[0], PendingState.MALFORMED):
            return False
        self._malformed.popleft()
        return True

    def _next_connection(self, layered: bool) -> socket.socket | None:
        """Return the connection to serve now. `layered`: whether connections over TLS or WebSocket may be served.

        If many workers wait for clients over TLS or WebSocket, whole hellos are served first.
        """
        stalled = self._children.stalled
        crowd = self._children.unproven.crowd(self._children.handshakes) + stalled
        whole = self._queue.next(crowd, layered=False) if stalled or not layered else None
        return self._queue.next(crowd) if whole is None and layered else whole

    def _start_worker(self, sock: socket.socket, state: PendingState) -> bool:
        """Start a worker, or refuse the connection. Return False if the system cannot start a process: retry later."""
        try:
            host = sock.getpeername()[0]
        except OSError:  # it has disconnected
            sock.close()
            return True
        malformed = state is PendingState.MALFORMED
        refusal = None if malformed else self._refusal_after_eviction()
        finished = self._children.training_finished
        if refusal is not None and state is PendingState.HELLO and not finished:
            refuse_overloaded(sock, refusal)
            return True
        try:
            pid, reports = self._spawner.spawn(sock, refusal, finished, self._close_in_child(sock))
        except OSError as error:
            if error.errno == errno.EMFILE and self._pending.drop_oldest():
                return False
            _log.error("starting a worker process failed (%s); retrying in %g s", error, FORK_RETRY_SECONDS)
            time.sleep(FORK_RETRY_SECONDS)
            return False
        self._children.add(pid, reports, serves=refusal is None and not malformed, host=host)
        self._counts["malformed"] += malformed
        self._quiet_since = time.monotonic()
        sock.close()
        return True

    def _refusal_after_eviction(self) -> str | None:
        """Return why there is no room for one more worker; None if there is. May evict an unproven client."""
        children = self._children
        if self._admission.refusal(children.serving, counts=False) is not None:
            children.free_place()
        return self._refusal(children.serving)

    def _refusal(self, workers: list[int]) -> str | None:
        refusal = self._admission.refusal(workers)
        if refusal is not None:
            self._log_limited("refused a connection: %s", refusal)
        return refusal

    def _close_in_child(self, own: socket.socket | None) -> Callable[[], None]:
        def close() -> None:
            for sock in (self._sock, self._wake_read, self._wake_write, *self._pending, *self._queue, *self._malformed):
                if sock is not own:
                    sock.close()
            if self._status is not None:
                self._status.close_in_child()
            self._children.close_descriptors()
            self._selector.close()

        return close

    def _stop(self) -> None:
        """Stop accepting, end the workers, kill workers that do not end in time, and close the status port."""
        signal.set_wakeup_fd(-1)
        self._serving = False
        if self._status is not None:
            self._status.send(self._sample())
        for sock in (self._sock, *self._pending, *self._queue, *self._malformed):
            sock.close()
        self._spawner.stop_workers()
        deadline = time.monotonic() + STOP_SECONDS
        while self._children.pids and time.monotonic() < deadline:
            self._children.reap()
            time.sleep(0.01)
        for pid in self._children.pids:
            _log.warning("killing worker %d: it did not end within %g s", pid, STOP_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while self._children.pids:
            self._children.reap(block=True)
        self._spawner.close()
        self._folders.close()
        if self._status is not None:
            self._status.stop()
        self._children.close_descriptors()
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()
