"""Frames: a 4-byte big-endian length, then a payload of that many bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from relaax.rlx.errors import ErrorCode, LocalProtocolError, ProtocolError

HEADER_BYTES = 4
HANDSHAKE_FRAME_BYTES = 64 * 2**10  # the limit before the welcome
_HEADER = struct.Struct(">I")
_HTTP2_HEADER_BYTES = 9

Piece = bytes | memoryview
"""A part of a payload: the memory of an array, or bytes."""


def frame(payload: bytes, max_frame_bytes: int) -> bytes:
    """Return one frame. Raises ProtocolError (FRAME_TOO_LARGE) if the payload exceeds the limit."""
    return framed([payload], len(payload), max_frame_bytes)


def framed(pieces: Sequence[Piece], length: int, max_frame_bytes: int) -> bytes:
    """Return one frame. `pieces`: its payload, of `length` bytes, which is copied once. Raises as `frame` does."""
    if length > max_frame_bytes:
        raise ProtocolError(ErrorCode.FRAME_TOO_LARGE, too_large(length, max_frame_bytes))
    return b"".join([_HEADER.pack(length), *pieces])


class FrameReader:
    """A reader that cuts a stream of bytes into frames.

    It buffers at most the bytes of the longest allowed frame, plus those of the last `feed`. `max_frame_bytes` may be
    changed between frames.
    """

    def __init__(self, max_frame_bytes: int = HANDSHAKE_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._payload: bytes | None = None  # of a frame that was received in one piece; then the buffer is empty

    def __len__(self) -> int:
        """Return the number of buffered bytes."""
        return len(self._buffer) if self._payload is None else HEADER_BYTES + len(self._payload)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Append received bytes.

        Raises LocalProtocolError if the buffer already holds as many bytes as the longest allowed frame has.
        """
        if self._payload is None and not self._buffer:
            length = len(data) - HEADER_BYTES
            if 0 < length <= self.max_frame_bytes and _HEADER.unpack_from(data)[0] == length:
                self._payload = bytes(data[HEADER_BYTES:])
                return
        elif len(self) >= HEADER_BYTES + self.max_frame_bytes:
            raise LocalProtocolError(
                ErrorCode.LIMIT_EXCEEDED, "a whole frame is buffered: call next_event before receive_data"
            )
        if self._payload is not None:
            self._buffer += _HEADER.pack(len(self._payload)) + self._payload
            self._payload = None
        self._buffer += data

    def first_byte(self) -> int | None:
        """Return the first byte of the next payload; None before it is received."""
        if self._payload is not None:
            return self._payload[0]
        return self._buffer[HEADER_BYTES] if len(self._buffer) > HEADER_BYTES else None

    def first_bytes(self) -> bytes:
        """Return the first buffered bytes, at most as many as an HTTP/2 frame header has."""
        return bytes(self._buffer[:_HTTP2_HEADER_BYTES])

    def next_frame(self) -> bytes | None:
        """Return the payload of the next frame; None if it is incomplete.

        Raises ProtocolError when a length of 0 (MALFORMED) or above the limit (FRAME_TOO_LARGE) is received.
        """
        payload, self._payload = self._payload, None
        if payload is not None:
            if len(payload) > self.max_frame_bytes:  # the limit was higher when it was received
                raise ProtocolError(ErrorCode.FRAME_TOO_LARGE, too_large(len(payload), self.max_frame_bytes))
            return payload
        end = self._end_of_frame(0)
        if end is None:
            return None
        with memoryview(self._buffer) as view:
            payload = bytes(view[HEADER_BYTES:end])
        del self._buffer[:end]
        return payload

    def pending_frames(self) -> Iterator[bytes]:
        """Return the payloads of the buffered whole frames, which stay buffered. Raises as `next_frame` does."""
        if self._payload is not None:
            yield self._payload
            return
        at = 0
        while (end := self._end_of_frame(at)) is not None:
            yield bytes(self._buffer[at + HEADER_BYTES : end])
            at = end

    def _end_of_frame(self, at: int) -> int | None:
        """Return the end of the frame that begins at `at`; None if it is incomplete. Raises ProtocolError."""
        if len(self._buffer) < at + HEADER_BYTES:
            return None
        (length,) = _HEADER.unpack_from(self._buffer, at)
        if length > self.max_frame_bytes:
            hint = _hint(bytes(self._buffer[at : at + HEADER_BYTES]), self.max_frame_bytes)
            raise ProtocolError(ErrorCode.FRAME_TOO_LARGE, too_large(length, self.max_frame_bytes) + hint)
        if length == 0:
            raise ProtocolError(ErrorCode.MALFORMED, "a frame of length 0 holds no message")
        end: int = at + HEADER_BYTES + length
        return end if end <= len(self._buffer) else None

    def clear(self) -> None:
        """Drop the buffered bytes."""
        self._buffer = bytearray()
        self._payload = None


def is_http2(begin: bytes | memoryview) -> bool:
    """Return whether the first bytes of a server are an HTTP/2 SETTINGS frame on stream 0.

    The same bytes in RLX would be a payload with a first byte of 0, which neither JSON nor Protobuf can have.
    """
    return len(begin) >= _HTTP2_HEADER_BYTES and begin[3:_HTTP2_HEADER_BYTES] == b"\x04\0\0\0\0\0"


def too_large(length: int, limit: int) -> str:
    """Return the message for a frame of `length` bytes, more than the limit."""
    return f"a frame of {length} bytes; the limit is {limit}"


def _hint(header: bytes, limit: int) -> str:
    """Return a hint about the likely cause of a length above the limit; "" without one."""
    if header.startswith((b"{", b"[")):
        return f"; it was read from the text {header.decode('ascii', 'replace')!r}: 4 bytes of length precede a message"
    little_endian = int.from_bytes(header, "little")
    if header[0] and little_endian <= limit:  # in a big-endian length of a large message the first byte is usually 0
        return f"; a length is big-endian, and this one is {little_endian} in little-endian"
    return ""
