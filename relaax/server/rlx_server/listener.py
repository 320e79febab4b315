"""Accepts connections and has a worker made for each. Single-threaded; creates no gRPC object, runs no TensorFlow.

How it stays open to honest clients whatever others do:

- A connection becomes a process when its whole hello is there to be read (see `arrivals`): saying nothing, or a byte a
  second, takes no place from those who introduce themselves.
- So a place among `max_handshakes` is held by computation, never by the client's pace: it is free as soon as the
  worker has let its client in or told it why not. A worker that then waits for its client to close is one of
  `children.MAX_LEAVING`; past that the oldest is ended.
- A first frame of an impossible length gets a process too, which answers it, but comes after every whole hello and
  has a quarter of the places.
- What waits is bounded: past `MAX_WAITING` connections, or without a descriptor, the longest waiting one is dropped
  for the newcomer, first among those that have not said their hello.
- Each turn does bounded work: it accepts at most 64, looks at what the kernel calls for, and starts at most
  `max_handshakes` workers.
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
from collections import deque
from collections.abc import Callable
from typing import Protocol

from relaax.server.rlx_server.arrivals import Arrival, Arrivals
from relaax.server.rlx_server.children import Children
from relaax.server.rlx_server.temporary import WorkerFolders

_log = logging.getLogger(__name__)

MAX_WAITING = 1024
TICK_SECONDS = 0.5
STOP_SECONDS = 5.0
LINGER_SECONDS = 2.0
FORK_RETRY_SECONDS = 1.0


class Spawner(Protocol):
    """Starts workers (see `relaax.server.rlx_server.spawner.ForkSpawner`)."""

    def spawn(
        self, sock: socket.socket, refusal: str | None, training_finished: bool, close_in_child: Callable[[], None]
    ) -> tuple[int, int]: ...

    def stop_workers(self) -> None: ...


class Admitter(Protocol):
    """Decides whether there is room (see `relaax.server.rlx_server.admission.Admission`)."""

    def refusal(self, workers: list[int]) -> str | None: ...


class Listener:
    """The server's loop. It looks at what connections say first, and reads nothing."""

    def __init__(
        self,
        sock: socket.socket,
        spawner: Spawner,
        admission: Admitter,
        folders: WorkerFolders,
        *,
        handshake_timeout: float,
        max_handshakes: int,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._spawner = spawner
        self._admission = admission
        self._folders = folders
        self._max_handshakes = max_handshakes
        self._max_wrong = max(1, max_handshakes // 4)
        self._selector = selectors.DefaultSelector()
        self._arrivals = Arrivals(self._selector, handshake_timeout)
        self._whole: deque[socket.socket] = deque()  # have said a hello, and wait for a worker
        self._wrong: deque[socket.socket] = deque()  # have said what is none, and wait for being told
        self._max_waiting = min(MAX_WAITING, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._children = Children(self._selector, folders.remove)
        self._wake_read, self._wake_write = socket.socketpair()
        self._signal: int | None = None
        self._quiet_since = time.monotonic()

    def run(self) -> int | None:
        """Until SIGTERM or SIGINT, whose number is returned, or until training has finished: None."""
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
            return self._signal
        finally:
            self._stop()

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signal = number

    def _training_is_over(self) -> bool:
        idle = not self._children.pids and not self._whole
        return self._children.training_finished and idle and time.monotonic() - self._quiet_since > LINGER_SECONDS

    def _turn(self) -> None:
        for key, _ in self._selector.select(min(TICK_SECONDS, self._arrivals.due)):
            if key.fileobj is self._sock:
                self._accept()
            elif key.fileobj is self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    self._wake_read.recv(4096)
            elif isinstance(key.fileobj, socket.socket):
                if key.fileobj in self._arrivals:  # it may have made room for another in this very turn
                    self._sort(key.fileobj, self._arrivals.look(key.fileobj))
            else:
                self._children.news(key.fd)
        if self._children.reap():
            self._quiet_since = time.monotonic()
        for sock, arrival in self._arrivals.look_again():
            self._sort(sock, arrival)
        self._arrivals.expire()
        while queue := self._next_in_turn():
            if not self._start(queue[0], wrong=queue is self._wrong):
                break
            queue.popleft()

    def _accept(self) -> None:
        """Take in what has come; past the bound, or without a descriptor, the longest waiting is dropped for it."""
        for _ in range(64):
            try:
                sock, _ = self._sock.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._make_room():
                    continue
                return
            if len(self._arrivals) + len(self._whole) + len(self._wrong) >= self._max_waiting:
                self._make_room()
            self._arrivals.add(sock)

    def _sort(self, sock: socket.socket, arrival: Arrival) -> None:
        if arrival is Arrival.WHOLE:
            self._whole.append(sock)
        elif arrival is Arrival.WRONG:
            self._wrong.append(sock)

    def _make_room(self) -> bool:
        if self._arrivals.drop_oldest():
            return True
        for queue in (self._wrong, self._whole):
            if queue:
                queue.popleft().close()
                return True
        return False

    def _next_in_turn(self) -> deque[socket.socket] | None:
        """The queue whose first connection is to have a worker now."""
        if self._children.handshakes >= self._max_handshakes:
            return None
        if self._whole:
            return self._whole
        return self._wrong if self._wrong and self._children.refusing < self._max_wrong else None

    def _start(self, sock: socket.socket, wrong: bool) -> bool:
        """Have a worker made; False where the system could not, and it is to be tried again."""
        refusal = None if wrong else self._admission.refusal(self._children.serving)
        if refusal is not None:
            _log.warning("refused a connection: %s", refusal)
        finished = self._children.training_finished
        try:
            pid, news = self._spawner.spawn(sock, refusal, finished, self._close_in_child(sock))
        except OSError as error:
            if error.errno == errno.EMFILE and self._arrivals.drop_oldest():
                return False
            _log.error("no worker could be started (%s); trying again", error)
            time.sleep(FORK_RETRY_SECONDS)
            return False
        self._children.add(pid, news, serves=refusal is None and not wrong)
        self._quiet_since = time.monotonic()
        sock.close()
        return True

    def _close_in_child(self, own: socket.socket) -> Callable[[], None]:
        def close() -> None:
            for sock in (self._sock, self._wake_read, self._wake_write, *self._arrivals, *self._whole, *self._wrong):
                if sock is not own:
                    sock.close()
            self._children.close_descriptors()
            self._selector.close()

        return close

    def _stop(self) -> None:
        """First no new connections, then the workers, told; then the workers that did not listen."""
        signal.set_wakeup_fd(-1)
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
        self._children.close_descriptors()
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()
