"""A TCP proxy that can drop answers and cut connections."""

from __future__ import annotations

import contextlib
import socket

from support.acceptor import Acceptor


class CuttingProxy(Acceptor):
    """A proxy between a client and `target` (HOST:PORT). Clients connect to `address`.

    After `drop_answers`, requests are forwarded and answers are dropped. `cut` closes all connections and ends the
    dropping of answers. After `cut_at_answer`, the next answer is dropped and all connections are closed.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._is_dropping = self._cuts_at_answer = False
        super().__init__()

    def cut_at_answer(self) -> None:
        self._cuts_at_answer = True

    def drop_answers(self) -> None:
        self._is_dropping = True

    def cut(self) -> None:
        super().cut()
        self._is_dropping = self._cuts_at_answer = False

    def _accepted(self, sock: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            sock.close()
            return
        self._sockets.append(server)
        self._start(self._forward, sock, server, False)
        self._start(self._forward, server, sock, True)

    def _forward(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if answers and self._cuts_at_answer:
                    self.cut()
                    break
                if not (answers and self._is_dropping):
                    sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()
