"""Serve workers of the same host: the same service by Unix socket and shared memory instead of gRPC."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from relaax.parameters import segments
from relaax.parameters.frames import BrokenFrame, FrameSocket
from relaax.server.ports.local_talk import LocalTalk, SharedMemoryOffers

_log = logging.getLogger(__name__)
_BACKLOG = 128
_STRANGERS = 32
"""Connections that have not yet authenticated; further ones are closed at once."""
_HANDSHAKE_SECONDS = 5.0
_PAUSE_SECONDS = 0.1


class LocalServer:
    """Listens in Linux's abstract namespace, which leaves no file behind, and serves each worker in a thread.

    Every user under the same kernel and in the same network namespace can connect, and only a worker with its proof is
    heard.
    """

    def __init__(
        self,
        offers: SharedMemoryOffers,
        let_in: Callable[[FrameSocket, float], tuple[str, LocalTalk]],
        lost: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Serve at the socket of `offers`.

        let_in: authenticates who connects, until a deadline by the monotonic clock, and returns the connection and its
            name; an earlier one of that name ends. Raises OSError and BrokenFrame.
        lost: is told the name of a connection that has ended.
        """
        self._offers = offers
        self._authenticated = let_in
        self._lost = lost
        self._lock = threading.Lock()
        self._connections: dict[str, LocalTalk] = {}
        self._threads: set[threading.Thread] = set()
        self._strangers: set[FrameSocket] = set()
        self._stopping = threading.Event()
        self._listener: socket.socket | None = None
        offers.connected = lambda: len(self._connections)

    def start(self) -> None:
        """Start to listen and to answer. If the system has no such memory or socket, nothing is offered."""
        if not segments.SUPPORTED:
            return
        try:
            with contextlib.ExitStack() as until_started:
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                until_started.callback(listener.close)
                listener.bind(b"\0" + self._offers.socket)
                listener.listen(_BACKLOG)
                self._start(self._accept, listener)
                until_started.pop_all()
        except (OSError, RuntimeError) as error:
            _log.warning("workers of this host come by gRPC, there is no socket for shared memory: %s", error)
            return
        self._listener = listener
        self._offers.open = True

    def stop(self, seconds: float) -> None:
        """Take no more requests; those that were taken have `seconds` to finish. Called once."""
        self._stopping.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            connections, threads = list(self._connections.values()), list(self._threads)
            for stranger in self._strangers:
                stranger.shut()
        for connection in connections:
            connection.ask_no_more()
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        for connection in connections:
            connection.close()

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if not self._stopping.wait(_PAUSE_SECONDS):  # of descriptors there may be more soon
                    _log.debug("no worker could be accepted: %s", error)
                continue
            frames = FrameSocket(sock)
            if not self._wait_for(frames):
                frames.close()
                continue
            try:
                self._start(self._serve, frames)
            except RuntimeError as error:
                _log.warning("a worker of this host could not be let in: %s", error)
                self._no_stranger(frames)
                frames.close()

    def _wait_for(self, stranger: FrameSocket) -> bool:
        with self._lock:
            if self._stopping.is_set() or len(self._strangers) >= _STRANGERS:
                return False
            self._strangers.add(stranger)
            return True

    def _no_stranger(self, frames: FrameSocket) -> None:
        with self._lock:
            self._strangers.discard(frames)

    def _serve(self, frames: FrameSocket) -> None:
        """Serve a connection from its first frame to its end."""
        with contextlib.closing(frames):
            try:
                connection = self._let_in(frames)
                if connection is not None:
                    connection.serve()
            except (BrokenFrame, OSError) as error:
                _log.debug("a local connection has ended: %s", error)
            finally:
                with self._lock:
                    ended = [key for key, value in self._connections.items() if value.frames is frames]
                    for name in ended:
                        del self._connections[name]
                for name in ended:
                    self._lost(name)

    def _let_in(self, frames: FrameSocket) -> LocalTalk | None:
        """Return the worker's connection, which replaces an earlier one; None if it does not authenticate."""
        try:
            deadline = time.monotonic() + _HANDSHAKE_SECONDS
            name, connection = self._authenticated(frames, deadline)
            frames.socket.settimeout(None)
        finally:
            self._no_stranger(frames)
        with self._lock:
            if self._stopping.is_set():
                return None
            before = self._connections.get(name)
            self._connections[name] = connection
        if before is not None:
            before.close()
        _log.debug("worker %s shares memory", name[:8])
        return connection

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        """Start a thread. Raises RuntimeError if the system has none left."""

        def run() -> None:
            try:
                target(*arguments)
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="local", daemon=True)
        with self._lock:  # who joins them finds none that has not begun
            thread.start()
            self._threads.add(thread)
