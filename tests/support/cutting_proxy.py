"""A TCP proxy that can swallow answers and cut connections."""

from __future__ import annotations

import contextlib
import socket

from support.acceptor import Acceptor


class CuttingProxy(Acceptor):
    """Stands between a client and `target` (HOST:PORT), which is reached through `address`.

    After `swallow_answers` requests still arrive, but nothing comes back. `cut` ends all connections, and answers come
    back again on new ones.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._swallowing = False
        super().__init__()

    def swallow_answers(self) -> None:
        self._swallowing = True

    def cut(self) -> None:
        super().cut()
        self._swallowing = False

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
                if not (answers and self._swallowing):
                    sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()
