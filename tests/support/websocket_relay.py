"""A relay from RLX over TCP to RLX over WebSocket.

It sends each frame as one message. The message has the length that the frame's header states, even if it is wrong.
Tests for TCP with valid or invalid data can thus run over WebSocket. The relay parses strictly, and does not use the
server's WebSocket library.
"""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import struct
import threading
from types import TracebackType

from relaax.conformance.websocket import BINARY, PING, Masker, Unframer, WebSocketWire, message, request
from relaax.conformance.wire import RuleViolation

PIECE = 1 << 16
MOST_HELD = 1 << 20  # maximum buffered bytes per direction; above it, reads pause
SHORT = 65_536  # maximum length of a message that may be fragmented: every server accepts this length


class Fragmenter(Masker):
    """A masker that sends some of the complete short frames in fragments."""

    def __init__(self) -> None:
        super().__init__()
        self._frames = 0

    def encode_frame(self, held: bytearray) -> tuple[bytes, int] | None:
        length = int.from_bytes(held[:4], "big")
        rng = random.Random(f"{self._frames} {length}")
        self._frames += 1
        if len(held) >= 4 + length and 0 < length <= SHORT and rng.random() < 0.2:
            return _fragments(bytes(held[4 : 4 + length]), rng), 4 + length
        return None


def _fragments(payload: bytes, rng: random.Random) -> bytes:
    """Return a message in several frames, some of them empty, with pings between them."""
    cuts = sorted(rng.randrange(len(payload) + 1) for _ in range(rng.randrange(1, 5)))
    parts = [payload[a:b] for a, b in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
    out = bytearray()
    for index, part in enumerate(parts):
        out += message(part, BINARY if index == 0 else 0, fin=index == len(parts) - 1)
        if index < len(parts) - 1 and rng.random() < 0.3:
            out += message(b"are you there?", PING)
    return bytes(out)


def upgraded(sock: socket.socket, asked: bytes | None = None) -> WebSocketWire:
    """Upgrade a connection to WebSocket. `asked`: a request in place of the usual one."""
    return WebSocketWire(sock, request() if asked is None else asked, Fragmenter())


class _Way:
    """One direction of a connection: data read at one end and not yet written at the other."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.held = bytearray()
        self.ended = self.closed = False


class _Pair:
    """A client's connection, and its connection to the server."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.up, self.down = _Way(near, far), _Way(far, near)
        self.masker, self.unframer = Fragmenter(), Unframer()
        self.up.held += request()

    def ways(self) -> tuple[_Way, _Way]:
        return self.up, self.down


class WebSocketRelay:
    """A relay for TCP clients at `address` to the server at `target`. One thread serves all clients."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listener.setblocking(False)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.failures: list[str] = []
        self._wake, self._waker = socket.socketpair()
        self._pairs: dict[int, _Pair] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> WebSocketRelay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        assert kind is not None or not self.failures, self.failures[:5]

    def close(self) -> None:
        """End all connections."""
        self._waker.close()
        self._thread.join(20)
        self._wake.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(1.0):
                    if key.fileobj is self._wake:
                        for pair in set(self._pairs.values()):
                            self._close(selector, pair)
                        return
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    elif (pair := self._pairs.get(key.fd)) is not None:
                        self._serve(selector, pair)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._target, timeout=20)
        except OSError:
            near.close()
            return
        self.connections += 1
        pair = _Pair(near, far)
        for sock in (near, far):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(sock, selectors.EVENT_READ)
            self._pairs[sock.fileno()] = pair
        self._serve(selector, pair)

    def _serve(self, selector: selectors.BaseSelector, pair: _Pair) -> None:
        try:
            for way in pair.ways():
                self._move(pair, way)
        except (OSError, RuleViolation) as error:
            if isinstance(error, RuleViolation):
                self.failures.append(str(error))
            self._close(selector, pair)
            return
        if all(way.closed for way in pair.ways()):
            self._close(selector, pair)
            return
        for way, other in (pair.ways(), pair.ways()[::-1]):
            reads = not way.ended and len(way.held) < MOST_HELD and (way is pair.down or pair.unframer.is_open)
            events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if other.held else 0)
            with contextlib.suppress(KeyError):
                selector.unregister(way.source)
            if events:
                selector.register(way.source, events)

    def _move(self, pair: _Pair, way: _Way) -> None:
        """Read available data, and write as much as the sink accepts. Raises OSError."""
        if not way.ended and len(way.held) < MOST_HELD and (way is pair.down or pair.unframer.is_open):
            with contextlib.suppress(BlockingIOError):
                data = way.source.recv(PIECE)
                way.ended = not data
                way.held += (pair.masker.mask if way is pair.up else pair.unframer.unframe)(data)
        with contextlib.suppress(BlockingIOError):
            while way.held:
                del way.held[: way.sink.send(way.held[:PIECE])]
        if way.ended and not way.held and not way.closed:
            way.closed = True
            way.sink.shutdown(socket.SHUT_WR)

    def _close(self, selector: selectors.BaseSelector, pair: _Pair) -> None:
        for way in pair.ways():
            self._pairs.pop(way.source.fileno(), None)
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(way.source)
            if way.held or not way.closed:  # a reset tells the other end that data is missing
                with contextlib.suppress(OSError):
                    way.sink.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for way in pair.ways():
            way.source.close()
