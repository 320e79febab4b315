"""Frames and messages as a stranger would write them: Protobuf's own library and a socket, nothing of relaax.rlx.

What checks a peer must not share its mistakes. Messages are those of `rlx_pb2`, which protoc made of the .proto.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from relaax.rlx import rlx_pb2

if TYPE_CHECKING:
    from relaax.conformance.websocket import WebSocketWire

import re

from google.protobuf.descriptor import FieldDescriptor

from relaax.rlx.wire.varint import varint

HANDSHAKE_BYTES = 65_536
FIRST_BYTE_SECONDS = 0.01
"""Pause after a frame's first byte if bytes are sent one by one, so that also a busy peer reads an incomplete frame."""


class Wrong(Exception):
    """The peer broke a rule. The message is a sentence."""


class Over(Exception):
    """The peer's stream has ended; `reset` where it was torn down instead of ended."""

    def __init__(self, reset: bool) -> None:
        super().__init__("the connection was reset" if reset else "the stream ended")
        self.reset = reset


class Silent(Exception):
    """Nothing came within the deadline."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"nothing came for {seconds:g} s")


def framed(payload: bytes) -> bytes:
    """Return a payload with its length."""
    return struct.pack(">I", len(payload)) + payload


def encoded(message: Message, codec: str) -> bytes:
    """Return a frame that says `message`, written as the vectors are."""
    if codec == "protobuf":
        return framed(message.SerializeToString(deterministic=True))
    return framed(json.dumps(json_format.MessageToDict(message), separators=(",", ":")).encode())


def decoded(payload: bytes, codec: str, kind: type[Any]) -> Any:
    """Return the message of `kind` (an envelope of `rlx_pb2`) in a payload. Raises Wrong."""
    try:
        if codec == "protobuf":
            return kind.FromString(payload)
        tree = json.loads(payload.decode("utf-8"))
        if not isinstance(tree, dict):
            raise Wrong(f"a frame holds {payload[:40]!r}, no object")
        return json_format.ParseDict(tree, kind(), ignore_unknown_fields=True)
    except (DecodeError, json_format.ParseError, ValueError, RecursionError) as error:
        raise Wrong(f"a frame of {len(payload)} bytes, {payload[:24].hex()}..., is no {codec} ({error})") from None


def kind_of(message: Any) -> str:
    """Return the name of the message in an envelope: "welcome", "episode_returns"; "nothing" where none is set."""
    return message.WhichOneof("message") or "nothing"


def code_name(code: int) -> str:
    """Return the name of an error code as section 9 writes it."""
    try:
        return rlx_pb2.ErrorCode.Name(code).removeprefix("ERROR_CODE_")
    except ValueError:
        return f"error code {code}"


class Line:
    """One connection. Every wait ends after `deadline` seconds."""

    def __init__(self, sock: socket.socket | WebSocketWire, deadline: float, one_by_one: bool = False) -> None:
        self._raw = sock if isinstance(sock, socket.socket) else sock.raw
        self._raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        self.deadline = deadline
        self.one_by_one = one_by_one
        self.max_frame_bytes = HANDSHAKE_BYTES
        self._buffer = bytearray()

    def send(self, data: bytes) -> None:
        """Send `data` whole or byte by byte. A closed connection is reported by the next read, not here."""
        self.socket.settimeout(self.deadline)
        with contextlib.suppress(ConnectionError, TimeoutError):
            if self.one_by_one:
                self.socket.sendall(data[:1])
                time.sleep(FIRST_BYTE_SECONDS)
                for i in range(1, len(data)):
                    self.socket.sendall(data[i : i + 1])
            else:
                self.socket.sendall(data)

    def payload(self, deadline: float | None = None) -> bytes:
        """Return the payload of the peer's next frame. Raises Over, Silent and Wrong."""
        until = time.monotonic() + (self.deadline if deadline is None else deadline)
        (length,) = struct.unpack(">I", self._take(4, until))
        if not 0 < length <= self.max_frame_bytes:
            raise Wrong(f"a frame announces {length} bytes; 1 to {self.max_frame_bytes} are allowed")
        return self._take(length, until)

    def expect_end(self) -> None:
        """The peer says nothing more and ends its stream, in order. Raises Wrong."""
        try:
            payload = self.payload()
        except Over as over:
            if over.reset:
                raise Wrong("the connection was reset instead of ended: what was said last may be lost") from None
        except Silent as silent:
            raise Wrong(f"{silent}: the stream was not ended") from None
        else:
            raise Wrong(f"after its last message the peer sent {payload[:24].hex()}...")

    def end(self) -> None:
        """End this direction of the stream."""
        with contextlib.suppress(OSError):
            # Not that of a socket over TLS, which would make it a plain one in both directions.
            socket.socket.shutdown(self._raw, socket.SHUT_WR)

    def close(self) -> None:
        """Close at once."""
        self.socket.close()

    def _take(self, count: int, until: float) -> bytes:
        started = time.monotonic()
        while len(self._buffer) < count:
            self.socket.settimeout(max(0.001, until - time.monotonic()))
            try:
                data = self.socket.recv(65_536)
            except TimeoutError:
                raise Silent(round(until - started, 1)) from None
            except OSError:
                raise Over(reset=True) from None
            if not data:
                raise Over(reset=False)
            self._buffer += data
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken


_UNKNOWN = (1010 << 3 | 2, b"\x02hi")  # a field of a newer peer
_UNKNOWN_IN_JSON = {"colour": {"red": [1, None]}, "[x.y]": 10**400}
_INTEGERS = {FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_ENUM}


def written_otherwise(message: Message, codec: str) -> bytes:
    """Return a frame with fields in reverse order and lists unpacked; in JSON with .proto names, numbers, nulls."""
    if codec == "protobuf":
        return framed(_reversed(message, unknown=False))
    tree = json_format.MessageToDict(message, preserving_proto_field_name=True, use_integers_for_enums=True)
    return framed(json.dumps(_numbers(tree), indent=1).encode())


def with_unknown_fields(message: Message, codec: str) -> bytes:
    """Return a frame in which every message has one more field than this version knows."""
    if codec == "protobuf":
        return framed(_reversed(message, unknown=True))
    return framed(json.dumps(_more(json_format.MessageToDict(message))).encode())


def _reversed(message: Message, unknown: bool) -> bytes:
    data = b""
    for field, value in reversed(message.ListFields()):
        # A repeated field answers to `extend`; strings, bytes and messages do not.
        for one in value if hasattr(value, "extend") else [value]:
            data += _field(field, one, unknown)
    return data + varint(_UNKNOWN[0]) + _UNKNOWN[1] if unknown else data


def _field(field: FieldDescriptor, value: Any, unknown: bool) -> bytes:
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return varint(field.number << 3 | 1) + struct.pack("<d", value)
    if field.type in _INTEGERS or field.type == FieldDescriptor.TYPE_BOOL:
        return varint(field.number << 3) + varint(int(value) & 2**64 - 1)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        value = _reversed(value, unknown)
    elif field.type == FieldDescriptor.TYPE_STRING:
        value = value.encode()
    elif field.type != FieldDescriptor.TYPE_BYTES:
        raise AssertionError(f"{field.full_name} has a type that the .proto did not have")
    return varint(field.number << 3 | 2) + varint(len(value)) + bytes(value)


_WRITTEN_AS_STRINGS = ("n", "start", "global_step")


def _numbers(tree: Any, key: str = "") -> Any:
    """64-bit integers as numbers; a null where a field is at its default."""
    if isinstance(tree, dict):
        return {name: _numbers(part, name) for name, part in reversed(tree.items())} | _null(tree)
    if isinstance(tree, list):
        return [_numbers(part, key) for part in tree]
    whole = isinstance(tree, str) and key in (*_WRITTEN_AS_STRINGS, "nvec") and re.fullmatch(r"-?\d+", tree)
    return int(tree) if whole else tree


def _null(tree: dict[str, Any]) -> dict[str, None]:
    """Return a field that every message of its kind may leave out, as null."""
    for mark, name in (("session_id", "server_version"), ("code", "retry_after_seconds"), ("environments", "host")):
        if mark in tree and name not in tree:
            return {name: None}
    return {}


def _more(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _more(part) for name, part in tree.items()} | _UNKNOWN_IN_JSON
    return [_more(part) for part in tree] if isinstance(tree, list) else tree
