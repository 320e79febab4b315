"""Accepts connections and has a worker made for each. Single-threaded; creates no gRPC object, runs no TensorFlow."""

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

from relaax.server.rlx_server.children import Children

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
    """The server's loop.

    An accepted connection costs a descriptor and nothing else until its first byte is there; a load balancer's
    probe never becomes a process. The parent looks whether there is a byte, and reads none.
    """

    def __init__(
        self,
        sock: socket.socket,
        spawner: Spawner,
        admission: Admitter,
        *,
        handshake_timeout: float,
        max_handshakes: int,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._spawner = spawner
        self._admission = admission
        self._handshake_timeout = handshake_timeout
        self._max_handshakes = max_handshakes
        self._selector = selectors.DefaultSelector()
        self._pending: dict[socket.socket, float] = {}
        self._ready: deque[socket.socket] = deque()
        self._max_waiting = min(MAX_WAITING, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._children = Children(self._selector)
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
        idle = not self._children.pids and not self._ready
        return self._children.training_finished and idle and time.monotonic() - self._quiet_since > LINGER_SECONDS

    def _turn(self) -> None:
        for key, _ in self._selector.select(TICK_SECONDS):
            if key.fileobj is self._sock:
                self._accept()
            elif key.fileobj is self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    self._wake_read.recv(4096)
            elif isinstance(key.fileobj, socket.socket):
                if key.fileobj in self._pending:  # it may have made room for another in this very turn
                    self._look(key.fileobj)
            else:
                self._children.news(key.fd)
        if self._children.reap():
            self._quiet_since = time.monotonic()
        self._expire()
        while self._ready and self._children.handshakes < self._max_handshakes:
            if not self._start(self._ready[0]):
                break
            self._ready.popleft()

    def _accept(self) -> None:
        """Take in what has come; past the bound, or without a descriptor, the longest waiting is dropped for it."""
        for _ in range(64):
            try:
                sock, _ = self._sock.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._make_room():
                    continue
                return
            sock.setblocking(False)
            if len(self._pending) + len(self._ready) >= self._max_waiting:
                self._make_room()
            self._pending[sock] = time.monotonic() + self._handshake_timeout
            self._selector.register(sock, selectors.EVENT_READ)

    def _make_room(self) -> bool:
        if self._pending:
            self._drop(next(iter(self._pending)))
        elif self._ready:
            self._ready.popleft().close()
        else:
            return False
        return True

    def _look(self, sock: socket.socket) -> None:
        """There is a byte, or the connection has ended."""
        try:
            byte = sock.recv(1, socket.MSG_PEEK)
        except OSError:
            byte = b""
        if not byte:
            self._drop(sock)
            return
        self._selector.unregister(sock)
        del self._pending[sock]
        self._ready.append(sock)

    def _drop(self, sock: socket.socket) -> None:
        del self._pending[sock]
        self._selector.unregister(sock)
        sock.close()

    def _expire(self) -> None:
        now = time.monotonic()
        while self._pending:
            sock, deadline = next(iter(self._pending.items()))  # the oldest comes first
            if deadline > now:
                return
            self._drop(sock)

    def _start(self, sock: socket.socket) -> bool:
        """Have a worker made; False where the system could not, and it is to be tried again."""
        refusal = self._admission.refusal(self._children.serving)
        if refusal is not None:
            _log.warning("refused a connection: %s", refusal)
        finished = self._children.training_finished
        try:
            pid, news = self._spawner.spawn(sock, refusal, finished, self._close_in_child(sock))
        except OSError as error:
            if error.errno == errno.EMFILE and self._pending:
                self._make_room()
                return False
            _log.error("no worker could be started (%s); trying again", error)
            time.sleep(FORK_RETRY_SECONDS)
            return False
        self._children.add(pid, news, serves=refusal is None)
        self._quiet_since = time.monotonic()
        sock.close()
        return True

    def _close_in_child(self, own: socket.socket) -> Callable[[], None]:
        def close() -> None:
            for sock in (self._sock, self._wake_read, self._wake_write, *self._pending, *self._ready):
                if sock is not own:
                    sock.close()
            self._children.close_descriptors()
            self._selector.close()

        return close

    def _stop(self) -> None:
        """First no new connections, then the workers, told; then the workers that did not listen."""
        signal.set_wakeup_fd(-1)
        for sock in (self._sock, *self._pending, *self._ready):
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
        self._children.close_descriptors()
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()
