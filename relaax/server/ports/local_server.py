"""A server for workers of the same host, by Unix socket and shared memory instead of gRPC."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from relaax.server.ports.local_session import LocalSession, SharedMemoryOffers
from relaax.transport import segments
from relaax.transport.frames import BrokenFrame, FrameSocket

_log = logging.getLogger(__name__)
_BACKLOG = 128
_STRANGERS = 32
"""Maximum number of connections that have not authenticated yet. Excess ones are closed at once."""
_HANDSHAKE_SECONDS = 5.0
_PAUSE_SECONDS = 0.1


class LocalServer:
    """A listener in Linux's abstract socket namespace, which creates no file. It serves each worker in a thread.

    Every user of the same kernel and network namespace can connect, but only workers that present their proof are
    served.
    """

    def __init__(
        self,
        offers: SharedMemoryOffers,
        authenticate: Callable[[FrameSocket, float], tuple[str, LocalSession]],
        on_lost: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Serve at the socket of `offers`.

        authenticate: authenticates a new connection until a deadline by the monotonic clock. Returns the name of the
            session and the session; an earlier session of that name is closed. Raises OSError and BrokenFrame.
        on_lost: called with the name of each session that has ended.
        """
        self._offers = offers
        self._authenticate = authenticate
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._sessions: dict[str, LocalSession] = {}
        self._threads: set[threading.Thread] = set()
        self._strangers: set[FrameSocket] = set()
        self._stopping = threading.Event()
        self._listener: socket.socket | None = None
        offers.connected = lambda: len(self._sessions)

    def start(self) -> None:
        """Start to listen and serve. If the system lacks shared memory or the socket, workers use gRPC."""
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
            _log.warning("workers of this host use gRPC because a socket for shared memory cannot be opened: %s", error)
            return
        self._listener = listener
        self._offers.open = True

    def stop(self, seconds: float) -> None:
        """Stop accepting requests. Pending ones have `seconds` to finish. Called once."""
        self._stopping.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            sessions, threads = list(self._sessions.values()), list(self._threads)
            for stranger in self._strangers:
                stranger.shut()
        for session in sessions:
            session.stop_receiving()
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        for session in sessions:
            session.close()

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if not self._stopping.wait(_PAUSE_SECONDS):  # descriptors may become free soon
                    _log.debug("cannot accept a local connection: %s", error)
                continue
            frames = FrameSocket(sock)
            if not self._add_stranger(frames):
                frames.close()
                continue
            try:
                self._start(self._serve, frames)
            except RuntimeError as error:
                _log.warning("cannot start a thread for a worker of this host: %s", error)
                self._remove_stranger(frames)
                frames.close()

    def _add_stranger(self, stranger: FrameSocket) -> bool:
        with self._lock:
            if self._stopping.is_set() or len(self._strangers) >= _STRANGERS:
                return False
            self._strangers.add(stranger)
            return True

    def _remove_stranger(self, frames: FrameSocket) -> None:
        with self._lock:
            self._strangers.discard(frames)

    def _serve(self, frames: FrameSocket) -> None:
        """Serve a connection from its first frame to its end."""
        with contextlib.closing(frames):
            try:
                session = self._admit(frames)
                if session is not None:
                    session.serve()
            except (BrokenFrame, OSError) as error:
                _log.debug("a local connection has ended: %s", error)
            finally:
                with self._lock:
                    ended = [key for key, value in self._sessions.items() if value.frames is frames]
                    for name in ended:
                        del self._sessions[name]
                for name in ended:
                    self._on_lost(name)

    def _admit(self, frames: FrameSocket) -> LocalSession | None:
        """Return the session of an authenticated worker, which replaces an earlier one; None if the server is stopping.

        Raises OSError and BrokenFrame.
        """
        try:
            deadline = time.monotonic() + _HANDSHAKE_SECONDS
            name, session = self._authenticate(frames, deadline)
            frames.socket.settimeout(None)
        finally:
            self._remove_stranger(frames)
        with self._lock:
            if self._stopping.is_set():
                return None
            before = self._sessions.get(name)
            self._sessions[name] = session
        if before is not None:
            before.close()
        _log.debug("worker %s is now connected by shared memory", name[:8])
        return session

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        """Start a thread. Raises RuntimeError if the system cannot start one."""

        def run() -> None:
            try:
                target(*arguments)
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="local", daemon=True)
        with self._lock:  # so that `stop` joins only started threads
            thread.start()
            self._threads.add(thread)
