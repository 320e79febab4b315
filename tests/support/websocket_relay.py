"""A relay from RLX over TCP to RLX over WebSocket: the length of a frame becomes that of a message, true or not.

So what was written for TCP, right or wrong, can be said to a server over WebSocket. What is read here is read strictly,
and not with the library that the server uses.
"""

from __future__ import annotations

import base64
import contextlib
import os
import random
import selectors
import socket
import struct
import threading
from types import TracebackType

from websockets.utils import apply_mask

PIECE = 1 << 16
MOST_HELD = 1 << 20  # bytes on their way, per direction, beyond which nothing more is read
SHORT = 65_536  # of a message that may be sent in fragments: it is no longer than any limit
REQUEST = (
    "GET /rlx HTTP/1.1\r\nHost: relay\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)
PING, PONG, CLOSE, BINARY = 9, 10, 8, 2


def request() -> bytes:
    """What a client asks for a WebSocket with."""
    return REQUEST.format(base64.b64encode(os.urandom(16)).decode()).encode()


def message(payload: bytes, opcode: int = BINARY, *, fin: bool = True, length: int | None = None) -> bytes:
    """A masked WebSocket frame of a client. `length`: what it announces; by default the truth."""
    count = len(payload) if length is None else length
    key = os.urandom(4)
    head = bytes([opcode | (0x80 if fin else 0)])
    if count < 126:
        head += bytes([0x80 | count])
    elif count < 65_536:
        head += bytes([0x80 | 126]) + struct.pack(">H", count)
    else:
        head += bytes([0x80 | 127]) + struct.pack(">Q", count)
    return head + key + apply_mask(payload, key)


class Masker:
    """A client's stream of RLX as one of WebSocket, piece by piece."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._left = 0  # of the frame under way
        self._key, self._at = b"", 0
        self._frames = 0

    def masked(self, data: bytes) -> bytes:
        """The bytes of WebSocket that these of RLX make. Short frames that are whole come in fragments now and then."""
        self._held += data
        out = bytearray()
        while self._held:
            if not self._left:
                if len(self._held) < 4:
                    break
                length = int.from_bytes(self._held[:4], "big")
                rng = random.Random(f"{self._frames} {length}")
                self._frames += 1
                if len(self._held) >= 4 + length and 0 < length <= SHORT and rng.random() < 0.2:
                    out += _fragments(bytes(self._held[4 : 4 + length]), rng)
                    del self._held[: 4 + length]
                    continue
                begun = message(b"", length=length)
                self._key, self._at, self._left = begun[-4:], 0, length
                out += begun
                del self._held[:4]
                continue
            piece = bytes(self._held[: self._left])
            key = self._key[self._at % 4 :] + self._key[: self._at % 4]
            out += apply_mask(piece, key)
            self._at += len(piece)
            self._left -= len(piece)
            del self._held[: len(piece)]
        return bytes(out)


def _fragments(payload: bytes, rng: random.Random) -> bytes:
    """One message in several frames, some of them empty, with pings between them."""
    cuts = sorted(rng.randrange(len(payload) + 1) for _ in range(rng.randrange(1, 5)))
    parts = [payload[a:b] for a, b in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
    out = bytearray()
    for index, part in enumerate(parts):
        out += message(part, BINARY if index == 0 else 0, fin=index == len(parts) - 1)
        if index < len(parts) - 1 and rng.random() < 0.3:
            out += message(b"are you there?", PING)
    return bytes(out)


class Unframer:
    """A server's stream of WebSocket as one of RLX, piece by piece. Raises AssertionError for what is none."""

    def __init__(self, strange: bool = False) -> None:
        """`strange`: the server may have been pinged with anything."""
        self._strange = strange
        self._held = bytearray()
        self._asked = True
        self.close_code: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether the request has been answered."""
        return not self._asked

    def taken(self, data: bytes) -> bytes:
        """The frames of RLX that these bytes complete."""
        self._held += data
        if self._asked:
            head, end, rest = bytes(self._held).partition(b"\r\n\r\n")
            if not end:
                return b""
            assert head.startswith(b"HTTP/1.1 101 "), head
            assert b"Extensions" not in head, "nothing is compressed"
            self._held, self._asked = bytearray(rest), False
        out = bytearray()
        while (frame := self._frame()) is not None:
            opcode, payload = frame
            assert self.close_code is None, "nothing follows a Close frame"
            if opcode == BINARY:
                out += struct.pack(">I", len(payload)) + payload
            elif opcode == CLOSE:
                self.close_code = int.from_bytes(payload[:2], "big") if payload else 1005
                payload[2:].decode("utf-8")
            else:
                assert opcode == PONG and (self._strange or payload == b"are you there?"), (opcode, payload)
        return bytes(out)

    def _frame(self) -> tuple[int, bytes] | None:
        held = self._held
        if len(held) < 2:
            return None
        assert held[0] & 0xF0 == 0x80, "whole frames, no reserved bits"
        count, at = held[1], 2
        assert count < 128, "a server does not mask"
        if count >= 126:
            size = 2 if count == 126 else 8
            count, at = int.from_bytes(held[2 : 2 + size], "big"), 2 + size
        if len(held) < at + count:
            return None
        payload = bytes(held[at : at + count])
        opcode = held[0] & 15
        del held[: at + count]
        return opcode, payload


class _Way:
    """What was read at one end and is to be written at the other."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.held = bytearray()
        self.ended = self.closed = False


class _Pair:
    """A client's connection, and the one to the server that was made for it."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.up, self.down = _Way(near, far), _Way(far, near)
        self.masker, self.unframer = Masker(), Unframer()
        self.up.held += request()

    def ways(self) -> tuple[_Way, _Way]:
        return self.up, self.down


class WebSocketRelay:
    """Takes clients of TCP at `address`, for the server at `target`. One thread serves all of them."""

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
        except (OSError, AssertionError) as error:
            if isinstance(error, AssertionError):
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
        """Read what is there, write what there is room for. Raises OSError."""
        if not way.ended and len(way.held) < MOST_HELD and (way is pair.down or pair.unframer.is_open):
            with contextlib.suppress(BlockingIOError):
                data = way.source.recv(PIECE)
                way.ended = not data
                way.held += (pair.masker.masked if way is pair.up else pair.unframer.taken)(data)
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
            if way.held or not way.closed:  # the other end is to know that something is missing
                with contextlib.suppress(OSError):
                    way.sink.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for way in pair.ways():
            way.source.close()


class Upgraded:
    """A blocking socket that speaks RLX over WebSocket: what of a socket a `Line` uses."""

    def __init__(self, sock: socket.socket, asked: bytes | None = None) -> None:
        """`asked`: another request than the usual one."""
        self.raw = sock
        self._masker, self.unframer = Masker(), Unframer()
        sock.sendall(request() if asked is None else asked)
        self._heard = b""
        while not self.unframer.is_open:
            data = sock.recv(PIECE)
            assert data, "the server closed before it answered the request"
            self._heard += self.unframer.taken(data)

    def sendall(self, data: bytes) -> None:
        self.raw.sendall(self._masker.masked(data))

    def recv(self, count: int) -> bytes:
        while not self._heard:
            data = self.raw.recv(PIECE)
            if not data:
                return b""
            self._heard = self.unframer.taken(data)
        said, self._heard = self._heard[:count], self._heard[count:]
        return said

    def settimeout(self, seconds: float | None) -> None:
        self.raw.settimeout(seconds)

    def close(self) -> None:
        self.raw.close()
