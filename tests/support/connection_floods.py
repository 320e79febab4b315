"""Many connections at once that do no good."""

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
    """A connection to HOST:PORT."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=timeout)


class ConnectionFlood:
    """So many connections that say the same at once, and then what they are told to."""

    def __init__(self, address: str, count: int, first_words: bytes = b"") -> None:
        self._address, self._count, self._first_words = address, count, first_words
        self.sockets: list[socket.socket] = []

    def __enter__(self) -> ConnectionFlood:
        try:
            for _ in range(self._count):
                sock = connect_to(self._address)
                self.sockets.append(sock)
                _say(sock, self._first_words)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def say(self, words: bytes) -> None:
        """Whoever is still connected says it."""
        for sock in self.sockets:
            _say(sock, words)

    def half_close(self) -> None:
        """They will say no more, and still listen."""
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)

    def dropped(self) -> int:
        """How many the server has closed, whatever it said before."""
        return sum(map(_is_over, self.sockets))

    def close(self) -> None:
        """All leave."""
        for sock in self.sockets:
            sock.close()


def _say(sock: socket.socket, words: bytes) -> None:
    with contextlib.suppress(OSError):  # it may have been dropped
        sock.sendall(words)


def _is_over(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(poll.poll(0))


_Self = TypeVar("_Self", bound="_Reconnecting")


class _Reconnecting(ABC):
    """`count` connections that a thread of their own keeps up until the end."""

    def __init__(self, address: str, count: int) -> None:
        self._address, self._count = address, count
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self: _Self) -> _Self:
        for _ in range(self._count):
            self._come()
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
    def _come(self) -> None:
        """One more."""

    @abstractmethod
    def _run(self) -> None:
        """Until `_stop`."""

    @abstractmethod
    def _sockets(self) -> Iterable[socket.socket]:
        """All that are open."""


class RejectedClients(_Reconnecting):
    """`count` connections that say `words`, are refused, and come again: 40 a second, or as many as are answered.

    Whoever was refused keeps his end open, for as long as `KEPT` others after him.
    """

    KEPT = 256

    def __init__(self, address: str, count: int, words: bytes) -> None:
        self.refusals = 0
        super().__init__(address, count)
        self._words = words
        self._waiting: deque[socket.socket] = deque()
        self._refused: deque[socket.socket] = deque()

    def _come(self) -> None:
        sock = connect_to(self._address)
        sock.setblocking(False)
        _say(sock, self._words)  # as much as there is room for
        self._waiting.append(sock)

    def _run(self) -> None:
        while not self._stop.wait(1 / 40):
            refused = next(filter(_is_over, self._waiting), None)
            if refused is None:
                continue
            self._waiting.remove(refused)
            self._refused.append(refused)
            self.refusals += 1
            if len(self._refused) > self.KEPT:
                self._refused.popleft().close()
            self._come()

    def _sockets(self) -> Iterable[socket.socket]:
        return *self._waiting, *self._refused


class SlowHandshakes(_Reconnecting):
    """Half of `count` connections say nothing, half a byte a second of a good hello. Who is dropped comes again."""

    def __init__(self, address: str, count: int) -> None:
        self.reconnects = 0
        super().__init__(address, count)
        self._word = rlx.ClientConnection().send(make_hello())
        self._said: dict[socket.socket, int] = {}

    def _come(self) -> None:
        self._said[connect_to(self._address)] = 0

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            for index, (sock, said) in enumerate(list(self._said.items())):
                if _is_over(sock) or said == len(self._word) - 1:
                    del self._said[sock]
                    sock.close()
                    self._come()
                    self.reconnects += 1
                elif index % 2:
                    _say(sock, self._word[said : said + 1])
                    self._said[sock] = said + 1

    def _sockets(self) -> Iterable[socket.socket]:
        return self._said


class NonReadingClients(_Reconnecting):
    """`count` connections that say a good hello and never read. Whoever is ended comes again at once."""

    def __init__(self, address: str, count: int, token: str = "") -> None:
        self.reconnects = 0
        super().__init__(address, count)
        spaces = {"observation_space": rlx.Box(shape=(4,)), "action_space": rlx.Discrete(2)}
        self._word = rlx.ClientConnection().send(make_hello(**spaces, token=token))
        self._open: dict[int, socket.socket] = {}
        self._poll = select.poll()

    def _come(self) -> None:
        sock = connect_to(self._address)
        _say(sock, self._word)
        self._open[sock.fileno()] = sock
        self._poll.register(sock, select.POLLRDHUP)

    def _run(self) -> None:
        while not self._stop.is_set():
            for descriptor, _ in self._poll.poll(100):
                self._poll.unregister(descriptor)
                self._open.pop(descriptor).close()
                with contextlib.suppress(OSError):  # one that cannot come just now is missing from then on
                    self._come()
                self.reconnects += 1

    def _sockets(self) -> Iterable[socket.socket]:
        return self._open.values()
