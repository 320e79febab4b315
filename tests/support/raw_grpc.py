"""gRPC callers with hand-written HTTP/2 frames, for calls that stay incomplete, from any loopback address."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Mapping
from types import TracebackType

CHECK = "/grpc.health.v1.Health/Check"
PUSH = "/relaax.v1.ParameterServerService/Push"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING = 0, 1, 3, 4, 6
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4


class RawCaller:
    """A connection that sends only the given parts of calls, and reads answers only on request."""

    def __init__(self, address: str, source: str = "127.0.0.1") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 60, source_address=(source, 0))
        self._stream = -1
        self._ended: set[int] = set()
        self.socket.sendall(preface())

    def begin(self, method: str, metadata: Mapping[str, str] | None = None) -> int:
        """Send the headers of a call without its message, and return its stream id."""
        self._stream += 2
        self.socket.sendall(frame(_HEADERS, _END_HEADERS, self._stream, headers(method, metadata)))
        return self._stream

    def send(self, stream: int, data: bytes, ends: bool = False) -> None:
        """Send bytes of a call's message."""
        self.socket.sendall(frame(_DATA, _END_STREAM if ends else 0, stream, data))

    def settle(self) -> None:
        """Wait until the server has read what was sent so far."""
        self.socket.sendall(frame(_PING, 0, 0, bytes(8)))
        acknowledged = False
        while not acknowledged:
            kind, flags, _, _ = self.receive()
            acknowledged = kind == _PING and bool(flags & _ACK)

    def receive(self) -> tuple[int, int, int, bytes]:
        """Return the next frame: type, flags, stream id and content. Answers pings and settings. Raises OSError."""
        head = self._read(9)
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        content = self._read(int.from_bytes(head[:3], "big"))
        if kind == _PING and not flags & _ACK:
            self.socket.sendall(frame(_PING, _ACK, 0, content))
        elif kind == _SETTINGS and not flags & _ACK:
            self.socket.sendall(frame(_SETTINGS, _ACK, 0))
        elif kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
            self._ended.add(stream)
        return kind, flags, stream, content

    def ended(self, stream: int) -> bool:
        """Wait until the server has ended a call. Raises OSError if it does not."""
        while stream not in self._ended:
            self.receive()
        return True

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionResetError("the server has closed the connection")
            data += more
        return data

    def __enter__(self) -> RawCaller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()


class StuckCalls:
    """Calls of one method without messages: `calls` on each of `connections` connections that are kept alive.

    `again`: seconds after which a call that the server has ended is repeated.
    """

    def __init__(
        self,
        address: str,
        method: str,
        calls: int,
        connections: int,
        metadata: Mapping[str, str] | None = None,
        again: float | None = None,
    ) -> None:
        self._again = again
        self.ended = 0
        self._address, self._method, self._calls, self._connections = address, method, calls, connections
        self._metadata = metadata
        self._callers: list[RawCaller] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._answer)

    def __enter__(self) -> StuckCalls:
        for _ in range(self._connections):
            caller = RawCaller(self._address)
            self._callers.append(caller)
            for _ in range(self._calls):
                caller.begin(self._method, self._metadata)
        for caller in self._callers:
            caller.settle()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()
        for caller in self._callers:
            caller.socket.close()

    def _answer(self) -> None:
        due: list[tuple[float, RawCaller]] = []
        with selectors.DefaultSelector() as selector:
            for caller in self._callers:
                selector.register(caller.socket, selectors.EVENT_READ, caller)
            while not self._closing.is_set():
                for key, _ in selector.select(0.1):
                    try:
                        kind, flags, _, _ = key.data.receive()
                        if kind == _HEADERS and flags & _END_STREAM:
                            self.ended += 1
                            if self._again is not None:
                                due.append((time.monotonic() + self._again, key.data))
                    except OSError:
                        selector.unregister(key.fileobj)
                while due and due[0][0] <= time.monotonic():
                    with contextlib.suppress(OSError):
                        due.pop(0)[1].begin(self._method, self._metadata)


def preface() -> bytes:
    """Return the first bytes that a client sends."""
    return _PREFACE + frame(_SETTINGS, 0, 0)


def headers(method: str, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the uncompressed headers of a call."""
    said = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "here",
        "content-type": "application/grpc",
        "te": "trailers",
        **(metadata or {}),
    }
    return b"".join(b"\0" + literal(name) + literal(value) for name, value in said.items())


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """Return a frame of HTTP/2."""
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def literal(text: str) -> bytes:
    """Return an uncompressed string of HPACK."""
    data = text.encode()
    if len(data) < 127:
        return bytes((len(data),)) + data
    rest, more = len(data) - 127, b"\x7f"
    while rest > 127:
        more, rest = more + bytes((rest & 0x7F | 0x80,)), rest >> 7
    return more + bytes((rest,)) + data
