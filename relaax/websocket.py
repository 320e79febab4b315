"""Conversion between RLX frames and binary WebSocket messages, without I/O.

A WebSocket message has its own length, so the four bytes before the payload of an RLX frame are not sent. They are
added to received messages for the protocol core, which does not depend on WebSocket.
"""

from __future__ import annotations

import logging
import struct

from websockets.exceptions import PayloadTooBig
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN, Protocol

from relaax.rlx import ErrorCode, RemoteProtocolError
from relaax.rlx.wire.framing import HEADER_BYTES, too_large

NOT_BINARY = "a text message: RLX has binary messages only, also for JSON, which is sent as UTF-8"
_LENGTH = struct.Struct(">I")
_CONTROL_BYTES = 125  # the longest control frame, which can arrive between the fragments of a message

QUIET = logging.getLogger("relaax.websocket.library")
"""The library's logger: at the level DEBUG it would log frames with tokens."""
QUIET.setLevel(logging.WARNING)


class WebSocketOver(ConnectionError):
    """Error: the WebSocket is not open, so a message cannot be sent."""


class HeldFailure(Protocol):
    """A protocol of the library that delays the Close frame after a failure, so that an RLX error is sent first."""

    failure: tuple[int, str] | None = None
    _limit: int | None = None

    @property
    def max_message_size(self) -> int | None:
        """Size limit of a message, and of a control frame between its fragments, which the library counts as well."""
        return self._limit if self._limit is None or self.current_size is None else self._limit + _CONTROL_BYTES

    @max_message_size.setter
    def max_message_size(self, limit: int | None) -> None:
        self._limit = limit

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        """Record a failure instead of sending a Close frame. Further messages are not processed."""
        self.failure = self.failure or (code, reason)

    def fail_now(self) -> None:
        """Send the Close frame that was held back."""
        assert self.failure is not None
        super().fail(*self.failure)


class MessageStream:
    """One end of an open WebSocket. The caller sends the bytes that the methods return."""

    def __init__(self, protocol: HeldFailure) -> None:
        self._protocol = protocol
        self._parts = bytearray()  # of a message in fragments
        self.ended = False
        """Whether the peer has sent a Close frame."""
        self.broken: RemoteProtocolError | None = None
        """The peer's error. Report it after the frames that `received` has returned."""

    def received(self, data: bytes | bytearray | memoryview, limit: int) -> bytes:
        """Return the frames of messages that these bytes complete. `limit`: the longest message, in bytes."""
        protocol = self._protocol
        if self.ended or self.broken is not None:
            return b""
        protocol.max_message_size = limit
        protocol.receive_data(data)  # type: ignore[arg-type]  # a memoryview works, too
        events = protocol.events_received()
        if len(events) == 1 and protocol.failure is None:
            frame = events[0]
            if isinstance(frame, Frame) and frame.opcode is Opcode.BINARY and frame.fin:  # the usual case
                return b"".join((_LENGTH.pack(len(frame.data)), frame.data))
        frames = bytearray()
        for event in events:
            if isinstance(event, Frame) and self.broken is None:
                frames += self._frame_of(event, limit)
        if protocol.failure is not None and self.broken is None:
            self.broken = self._protocol_error(protocol.failure[1], limit)
        return bytes(frames)

    def _frame_of(self, frame: Frame, limit: int) -> bytes:
        """Return the RLX frame that this WebSocket frame completes, if it does."""
        if frame.opcode is Opcode.TEXT:
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "binary messages only")
            self.broken = RemoteProtocolError(ErrorCode.MALFORMED, NOT_BINARY)
        elif frame.opcode is Opcode.CLOSE:
            self.ended = True
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT):
            self._parts += frame.data
            if len(self._parts) > limit:
                self._protocol.fail(CloseCode.MESSAGE_TOO_BIG, "")
                self.broken = _too_large(len(self._parts), limit)
            elif frame.fin:
                whole, self._parts = self._parts, bytearray()
                return _LENGTH.pack(len(whole)) + whole
        return b""

    def _protocol_error(self, reason: str, limit: int) -> RemoteProtocolError:
        """Return the error for bytes that the library rejected."""
        error = self._protocol.parser_exc
        if isinstance(error, PayloadTooBig):
            return _too_large((error.size or 0) + (error.current_size or 0), limit)
        return RemoteProtocolError(ErrorCode.MALFORMED, f"invalid WebSocket data: {reason}")

    def to_messages(self, data: bytes | memoryview) -> bytes:
        """Return the messages for complete RLX frames. Raises WebSocketOver."""
        protocol = self._protocol
        if protocol.state is not OPEN:
            raise WebSocketOver("the WebSocket is closed")
        view, at = memoryview(data), 0
        while at < len(view):
            (length,) = _LENGTH.unpack_from(view, at)
            at += HEADER_BYTES
            protocol.send_binary(view[at : at + length])
            at += length
        return self.to_send()

    def to_send(self) -> bytes:
        """Return the library's own bytes for the peer: answers to pings and to a Close frame."""
        return b"".join(self._protocol.data_to_send())

    def close_frame(self) -> bytes:
        """Return a Close frame; empty if the peer's Close frame has already been answered."""
        if self._protocol.state is OPEN:
            if self._protocol.failure is not None:
                self._protocol.fail_now()
            else:
                self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        return self.to_send()


def _too_large(length: int, limit: int) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.FRAME_TOO_LARGE, too_large(length, limit))
