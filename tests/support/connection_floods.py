"""Floods of simultaneous connections to an RLX server that are idle, slow, invalid or do not read."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import TypeVar

from relaax import rlx
from support.rlx_pair import make_hello


def connect_to(address: str, timeout: float = 20.0) -> socket.socket:
    """Connect to HOST:PORT."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=timeout)


class ConnectionFlood:
    """`count` connections that send the same bytes at once, and then more bytes on demand."""

    def __init__(self, address: str, count: int, first_bytes: bytes = b"") -> None:
        self._address, self._count, self._first_bytes = address, count, first_bytes
        self.sockets: list[socket.socket] = []

    def __enter__(self) -> ConnectionFlood:
        try:
            for _ in range(self._count):
                sock = connect_to(self._address)
                self.sockets.append(sock)
                _send(sock, self._first_bytes)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        """Send bytes on all connections that are still open."""
        for sock in self.sockets:
            _send(sock, data)

    def half_close(self) -> None:
        """Close the sending side of all connections."""
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)

    def dropped(self) -> int:
        """Return the number of connections that the server has closed."""
        return sum(map(_is_closed, self.sockets))

    def close(self) -> None:
        """Close all connections."""
        for sock in self.sockets:
            sock.close()


def _send(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the server may have dropped it
        sock.sendall(data)


def _is_closed(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(poll.poll(0))


_Self = TypeVar("_Self", bound="_Reconnecting")


class _Reconnecting(ABC):
    """`count` connections. A thread replaces the closed ones until the end of the block."""

    def __init__(self, address: str, count: int) -> None:
        self._address, self._count = address, count
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self: _Self) -> _Self:
        for _ in range(self._count):
            self._connect()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        for sock in self._sockets():
            sock.close()

    @abstractmethod
    def _connect(self) -> None:
        """Open one more connection."""

    @abstractmethod
    def _run(self) -> None:
        """Replace connections until `_stop` is set."""

    @abstractmethod
    def _sockets(self) -> Iterable[socket.socket]:
        """Return all open sockets."""


class RejectedClients(_Reconnecting):
    """`count` connections that send invalid `data`, are refused, and are replaced at up to 40 per second.

    A refused client keeps its socket open until `KEPT` others have been refused after it.
    """

    KEPT = 256

    def __init__(self, address: str, count: int, data: bytes) -> None:
        self.refusals = 0
        super().__init__(address, count)
        self._data = data
        self._waiting: deque[socket.socket] = deque()
        self._refused: deque[socket.socket] = deque()

    def _connect(self) -> None:
        sock = connect_to(self._address)
        sock.setblocking(False)
        _send(sock, self._data)  # as much as the buffer takes
        self._waiting.append(sock)

    def _run(self) -> None:
        while not self._stop.wait(1 / 40):
            refused = next(filter(_is_closed, self._waiting), None)
            if refused is None:
                continue
            self._waiting.remove(refused)
            self._refused.append(refused)
            self.refusals += 1
            if len(self._refused) > self.KEPT:
                self._refused.popleft().close()
            self._connect()

    def _sockets(self) -> Iterable[socket.socket]:
        return *self._waiting, *self._refused


class SlowHandshakes(_Reconnecting):
    """`count` connections that do not finish their hello. Half send nothing, half send one byte per second.

    A dropped connection is replaced.
    """

    def __init__(self, address: str, count: int) -> None:
        self.reconnects = 0
        super().__init__(address, count)
        self._hello = rlx.ClientConnection().send(make_hello())
        self._sent: dict[socket.socket, int] = {}

    def _connect(self) -> None:
        self._sent[connect_to(self._address)] = 0

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            for index, (sock, sent) in enumerate(list(self._sent.items())):
                if _is_closed(sock) or sent == len(self._hello) - 1:
                    del self._sent[sock]
                    sock.close()
                    self._connect()
                    self.reconnects += 1
                elif index % 2:
                    _send(sock, self._hello[sent : sent + 1])
                    self._sent[sock] = sent + 1

    def _sockets(self) -> Iterable[socket.socket]:
        return self._sent


class NonReadingClients(_Reconnecting):
    """`count` connections that send a valid hello and never read. A closed connection is replaced at once."""

    def __init__(self, address: str, count: int, token: str = "") -> None:
        self.reconnects = 0
        super().__init__(address, count)
        spaces = {"observation_space": rlx.Box(shape=(4,)), "action_space": rlx.Discrete(2)}
        self._hello = rlx.ClientConnection().send(make_hello(**spaces, token=token))
        self._open: dict[int, socket.socket] = {}
        self._poll = select.poll()

    def _connect(self) -> None:
        sock = connect_to(self._address)
        _send(sock, self._hello)
        self._open[sock.fileno()] = sock
        self._poll.register(sock, select.POLLRDHUP)

    def _run(self) -> None:
        while not self._stop.is_set():
            for descriptor, _ in self._poll.poll(100):
                self._poll.unregister(descriptor)
                self._open.pop(descriptor).close()
                with contextlib.suppress(OSError):  # a connection that fails is not retried
                    self._connect()
                self.reconnects += 1

    def _sockets(self) -> Iterable[socket.socket]:
        return self._open.values()
