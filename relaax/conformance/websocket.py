"""An independent implementation of WebSocket for RLX: each RLX frame becomes one binary message.

Any bytes of a conversation can be sent over WebSocket, also mistakes and wrong lengths. Except for `apply_mask`, the
module does not use the WebSocket library of RELAAX's server, so that it does not share its bugs.
"""

from __future__ import annotations

import base64
import os
import socket
import struct

from websockets.utils import apply_mask

from relaax.conformance.wire import RuleViolation

PIECE_BYTES = 1 << 16
BINARY, CLOSE, PING, PONG = 2, 8, 9, 10
_REQUEST = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)


def request(host: str = "localhost", path: str = "/") -> bytes:
    """Return a client's HTTP request for a WebSocket."""
    return _REQUEST.format(path=path, host=host, key=base64.b64encode(os.urandom(16)).decode()).encode()


def message(payload: bytes, opcode: int = BINARY, *, fin: bool = True, length: int | None = None) -> bytes:
    """Return a client's WebSocket frame. `length`: the length that it announces; by default the true one."""
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
    """A converter of a client's RLX stream to a WebSocket stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0  # missing bytes of the current message
        self._key = b""  # rotated so that it begins with the mask of the next byte

    def mask(self, data: bytes) -> bytes:
        """Return the WebSocket bytes for the next RLX bytes."""
        self._buffer += data
        out = bytearray()
        while self._buffer:
            if self._left:
                piece = bytes(self._buffer[: self._left])
                out += apply_mask(piece, self._key)
                turn = len(piece) % 4
                self._key = self._key[turn:] + self._key[:turn]
                self._left -= len(piece)
                del self._buffer[: len(piece)]
            elif len(self._buffer) < 4:
                break
            elif (encoded := self.encode_frame(self._buffer)) is not None:
                out += encoded[0]
                del self._buffer[: encoded[1]]
            else:
                self._left = int.from_bytes(self._buffer[:4], "big")
                start = message(b"", length=self._left)
                self._key = start[-4:]
                out += start
                del self._buffer[:4]
        return bytes(out)

    def encode_frame(self, held: bytearray) -> tuple[bytes, int] | None:
        """Return the WebSocket bytes for a whole RLX frame at the start of `held`, and the length of that frame.

        A subclass may override this method. If it returns None, as here, `mask` encodes the frame.
        """
        return None


class Unframer:
    """A converter of a server's WebSocket stream to an RLX stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.is_open = False  # whether the server has accepted the request
        self.close_code: int | None = None  # of the server's Close frame; None before it

    def unframe(self, data: bytes) -> bytes:
        """Return the RLX frames that the next bytes complete. Raises RuleViolation."""
        self._buffer += data
        if not self.is_open:
            head, end, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            if not end:
                return b""
            if not head.startswith(b"HTTP/1.1 101 "):
                raise RuleViolation(
                    f"the request for a WebSocket was answered with {head.splitlines()[0]!r} {rest[:300]!r}"
                )
            if b"\r\nsec-websocket-extensions" in head.lower():
                raise RuleViolation("the server accepted a WebSocket extension; RLX allows none")
            self._buffer, self.is_open = bytearray(rest), True
        out = bytearray()
        while (frame := self._frame()) is not None:
            out += self._to_rlx(*frame)
        return bytes(out)

    def _to_rlx(self, opcode: int, payload: bytes) -> bytes:
        if self.close_code is not None:
            raise RuleViolation("the server sent a WebSocket frame after its Close frame")
        if opcode == BINARY:
            return struct.pack(">I", len(payload)) + payload
        if opcode == CLOSE:
            self.close_code = int.from_bytes(payload[:2], "big") if payload else 1005
        elif opcode not in (PING, PONG):
            raise RuleViolation(
                f"the server sent a WebSocket frame with opcode {opcode}; RLX allows binary messages only"
            )
        return b""

    def _frame(self) -> tuple[int, bytes] | None:
        held = self._buffer
        if len(held) < 2:
            return None
        if held[0] & 0xF0 != 0x80 or held[1] & 0x80:
            raise RuleViolation(
                f"a WebSocket frame begins with {bytes(held[:2]).hex()}: it is fragmented, masked, or has reserved bits"
            )
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
    """A connection with the methods of a socket that `FrameStream` uses, carrying RLX over WebSocket."""

    def __init__(self, sock: socket.socket, request: bytes, masker: Masker | None = None) -> None:
        """Send the request `request`. Raises OSError, and RuleViolation if the server refuses it."""
        self.raw = sock
        self.unframer = Unframer()
        self._masker = masker or Masker()
        self._received = b""
        sock.sendall(request)
        while not self.unframer.is_open:
            data = sock.recv(PIECE_BYTES)
            if not data:
                raise RuleViolation("the server closed the connection before it answered the WebSocket request")
            self._received += self.unframer.unframe(data)

    def sendall(self, data: bytes) -> None:
        """Send RLX bytes. Raises OSError."""
        self.raw.sendall(self._masker.mask(data))

    def recv(self, count: int) -> bytes:
        """Return at most `count` RLX bytes; b"" at the end of the stream. Raises OSError and RuleViolation."""
        while not self._received:
            data = self.raw.recv(PIECE_BYTES)
            if not data:
                return b""
            self._received = self.unframer.unframe(data)
        data, self._received = self._received[:count], self._received[count:]
        return data

    def settimeout(self, seconds: float | None) -> None:
        """Set the timeout of each call."""
        self.raw.settimeout(seconds)

    def close(self) -> None:
        """Close at once."""
        self.raw.close()
