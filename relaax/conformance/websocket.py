"""WebSocket as a stranger would write it, under conversations of RLX: the length of a frame becomes a message's.

Whatever a conversation says, mistakes and lengths that lie included, can so be said over WebSocket. Masks apart,
nothing here is of the library that RELAAX's server uses.
"""

from __future__ import annotations

import base64
import os
import socket
import struct

from websockets.utils import apply_mask

from relaax.conformance.wire import Wrong

PIECE_BYTES = 1 << 16
BINARY, CLOSE, PING, PONG = 2, 8, 9, 10
_REQUEST = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)


def request(host: str = "localhost", path: str = "/") -> bytes:
    """Return a client's request for a WebSocket."""
    return _REQUEST.format(path=path, host=host, key=base64.b64encode(os.urandom(16)).decode()).encode()


def message(payload: bytes, opcode: int = BINARY, *, fin: bool = True, length: int | None = None) -> bytes:
    """Return a client's WebSocket frame. `length`: what it announces; by default the truth."""
    count = len(payload) if length is None else length
    head = bytes([opcode | (0x80 if fin else 0)])
    if count < 126:
        head += bytes([0x80 | count])
    elif count < 2**16:
        head += bytes([0x80 | 126]) + struct.pack(">H", count)
    else:
        head += bytes([0x80 | 127]) + struct.pack(">Q", count)
    key = os.urandom(4)
    return head + key + apply_mask(payload, key)


class Masker:
    """A client's stream of RLX as one of WebSocket, piece by piece."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._left = 0  # of the message under way
        self._key = b""  # from its next byte on

    def masked(self, data: bytes) -> bytes:
        """Return the bytes of WebSocket that these of RLX make."""
        self._held += data
        out = bytearray()
        while self._held:
            if self._left:
                piece = bytes(self._held[: self._left])
                out += apply_mask(piece, self._key)
                turn = len(piece) % 4
                self._key = self._key[turn:] + self._key[:turn]
                self._left -= len(piece)
                del self._held[: len(piece)]
            elif len(self._held) < 4:
                break
            elif (whole := self.whole(self._held)) is not None:
                out += whole[0]
                del self._held[: whole[1]]
            else:
                self._left = int.from_bytes(self._held[:4], "big")
                begun = message(b"", length=self._left)
                self._key = begun[-4:]
                out += begun
                del self._held[:4]
        return bytes(out)

    def whole(self, held: bytearray) -> tuple[bytes, int] | None:
        """Return another way to say the whole frame at the beginning of `held`, and its length; None for the usual."""
        return None


class Unframer:
    """A server's stream of WebSocket as one of RLX, piece by piece."""

    def __init__(self) -> None:
        self._held = bytearray()
        self.is_open = False  # the request has been answered
        self.close_code: int | None = None  # of the server's Close frame, if it has come

    def taken(self, data: bytes) -> bytes:
        """Return the frames of RLX that these bytes complete. Raises Wrong."""
        self._held += data
        if not self.is_open:
            head, end, rest = bytes(self._held).partition(b"\r\n\r\n")
            if not end:
                return b""
            if not head.startswith(b"HTTP/1.1 101 "):
                raise Wrong(f"the request for a WebSocket was answered {head.splitlines()[0]!r} {rest[:300]!r}")
            if b"\r\nsec-websocket-extensions" in head.lower():
                raise Wrong("the server took an extension: RLX has none")
            self._held, self.is_open = bytearray(rest), True
        out = bytearray()
        while (frame := self._frame()) is not None:
            out += self._rlx(*frame)
        return bytes(out)

    def _rlx(self, opcode: int, payload: bytes) -> bytes:
        if self.close_code is not None:
            raise Wrong("a WebSocket frame came after the Close frame")
        if opcode == BINARY:
            return struct.pack(">I", len(payload)) + payload
        if opcode == CLOSE:
            self.close_code = int.from_bytes(payload[:2], "big") if payload else 1005
        elif opcode not in (PING, PONG):
            raise Wrong(f"a WebSocket frame of opcode {opcode} came; RLX has binary messages only")
        return b""

    def _frame(self) -> tuple[int, bytes] | None:
        held = self._held
        if len(held) < 2:
            return None
        if held[0] & 0xF0 != 0x80 or held[1] & 0x80:
            raise Wrong(f"a WebSocket frame begins {bytes(held[:2]).hex()}: in parts, masked, or with reserved bits")
        count, at = held[1], 2
        if count >= 126:
            at += 2 if count == 126 else 8
            count = int.from_bytes(held[2:at], "big")
        if len(held) < at + count:
            return None
        opcode, payload = held[0] & 15, bytes(held[at : at + count])
        del held[: at + count]
        return opcode, payload


class WebSocketWire:
    """A socket that carries RLX over WebSocket: what of a socket a `Line` uses."""

    def __init__(self, sock: socket.socket, asked: bytes, masker: Masker | None = None) -> None:
        """`asked`: the request. Raises OSError, and Wrong if the answer is no WebSocket."""
        self.raw = sock
        self.unframer = Unframer()
        self._masker = masker or Masker()
        self._heard = b""
        sock.sendall(asked)
        while not self.unframer.is_open:
            data = sock.recv(PIECE_BYTES)
            if not data:
                raise Wrong("the server closed before it answered the request for a WebSocket")
            self._heard += self.unframer.taken(data)

    def sendall(self, data: bytes) -> None:
        """Send bytes of RLX. Raises OSError."""
        self.raw.sendall(self._masker.masked(data))

    def recv(self, count: int) -> bytes:
        """Return at most `count` bytes of RLX; none at the end of the stream. Raises OSError and Wrong."""
        while not self._heard:
            data = self.raw.recv(PIECE_BYTES)
            if not data:
                return b""
            self._heard = self.unframer.taken(data)
        said, self._heard = self._heard[:count], self._heard[count:]
        return said

    def settimeout(self, seconds: float | None) -> None:
        """Bound each wait."""
        self.raw.settimeout(seconds)

    def close(self) -> None:
        """Close at once."""
        self.raw.close()
