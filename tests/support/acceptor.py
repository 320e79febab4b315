"""A base class of test servers: accepts connections, serves them in threads, and ends them all when it is closed."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

PATIENCE = 20.0  # seconds; a test that waits longer has failed

_Self = TypeVar("_Self", bound="Acceptor")


class Acceptor(ABC):
    """A server that accepts connections at `address` (HOST:PORT). By default, the port is a free one."""

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every connection and thread."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._acceptor.join(PATIENCE)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE)
        for sock in self._sockets:
            sock.close()
        assert not any(thread.is_alive() for thread in self._threads), (
            "a thread is still running after its connection ended"
        )

    def cut(self) -> None:
        """End every connection."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    @abstractmethod
    def _accepted(self, sock: socket.socket) -> None:
        """Start to serve a connection. Called in the order in which connections are accepted."""

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            self._accepted(sock)
