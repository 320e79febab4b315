"""An independent implementation of RLX frames and messages, with Protobuf's own library.

It uses only generated code and varints of relaax.rlx, so that it does not share the bugs of the peer under test.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import time
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from relaax.rlx import rlx_pb2
from relaax.rlx.wire.varint import varint

HANDSHAKE_BYTES = 65_536
FIRST_BYTE_SECONDS = 0.01
"""Pause after the first byte if bytes are sent one by one, so that even a busy peer reads an incomplete frame."""


class RuleViolation(Exception):
    """A breach of a rule by the peer. The message is a sentence."""


class StreamEnded(Exception):
    """The end of the peer's stream. `reset`: whether the connection was reset instead of ended in order."""

    def __init__(self, reset: bool) -> None:
        super().__init__("the connection was reset" if reset else "the stream ended")
        self.reset = reset


class ReceiveTimeout(Exception):
    """A wait that reached its deadline without a whole frame."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no frame was received for {seconds:g} s")


def framed(payload: bytes) -> bytes:
    """Return a frame with this payload."""
    return struct.pack(">I", len(payload)) + payload


def encoded(message: Message, codec: str) -> bytes:
    """Return the frame of `message`, encoded as in the vectors."""
    if codec == "protobuf":
        return framed(message.SerializeToString(deterministic=True))
    return framed(json.dumps(json_format.MessageToDict(message), separators=(",", ":")).encode())


def decoded(payload: bytes, codec: str, kind: type[Any]) -> Any:
    """Return the message of `kind` (an envelope of `rlx_pb2`) in a payload. Raises RuleViolation."""
    try:
        if codec == "protobuf":
            return kind.FromString(payload)
        tree = json.loads(payload.decode("utf-8"))
        if not isinstance(tree, dict):
            raise RuleViolation(f"a frame has {payload[:40]!r} instead of an object")
        return json_format.ParseDict(tree, kind(), ignore_unknown_fields=True)
    except (DecodeError, json_format.ParseError, ValueError, RecursionError) as error:
        raise RuleViolation(
            f"a frame of {len(payload)} bytes, {payload[:24].hex()}..., is not {codec} ({error})"
        ) from None


def kind_of(message: Any) -> str:
    """Return the name of the message in an envelope, such as "episode_returns"; "nothing" without a message."""
    return message.WhichOneof("message") or "nothing"


def code_name(code: int) -> str:
    """Return the name of an error code as in section 9 of the specification."""
    try:
        return rlx_pb2.ErrorCode.Name(code).removeprefix("ERROR_CODE_")
    except ValueError:
        return f"error code {code}"


class FrameStream:
    """A connection that carries frames. Every wait ends after `deadline` seconds.

    `sock`: a socket, or a `WebSocketWire`, whose `raw` is a socket. `one_by_one`: send each byte by itself.
    """

    def __init__(self, sock: Any, deadline: float, one_by_one: bool = False) -> None:
        self._raw: socket.socket = getattr(sock, "raw", sock)
        self._raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        self.deadline = deadline
        self.one_by_one = one_by_one
        self.max_frame_bytes = HANDSHAKE_BYTES
        self._buffer = bytearray()

    def send(self, data: bytes) -> None:
        """Send `data`. The next read, not this method, reports a closed connection."""
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
        """Return the payload of the peer's next frame. Raises StreamEnded, ReceiveTimeout and RuleViolation."""
        until = time.monotonic() + (self.deadline if deadline is None else deadline)
        (length,) = struct.unpack(">I", self._receive(4, until))
        if not 0 < length <= self.max_frame_bytes:
            raise RuleViolation(f"a frame announces {length} bytes; 1 to {self.max_frame_bytes} are allowed")
        return self._receive(length, until)

    def expect_end(self) -> None:
        """Check that the peer ends its stream in order without another message. Raises RuleViolation."""
        try:
            payload = self.payload()
        except StreamEnded as end:
            if end.reset:
                raise RuleViolation(
                    "the connection was reset instead of ended, so the last message may be lost"
                ) from None
        except ReceiveTimeout as timeout:
            raise RuleViolation(f"{timeout}: the peer did not end its stream") from None
        else:
            raise RuleViolation(f"after its last message the peer sent {payload[:24].hex()}...")

    def end(self) -> None:
        """End this direction of the stream."""
        with contextlib.suppress(OSError):
            # SSLSocket.shutdown would drop TLS in both directions; the base class ends one direction only.
            socket.socket.shutdown(self._raw, socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _receive(self, count: int, until: float) -> bytes:
        started = time.monotonic()
        while len(self._buffer) < count:
            self.socket.settimeout(max(0.001, until - time.monotonic()))
            try:
                data = self.socket.recv(65_536)
            except TimeoutError:
                raise ReceiveTimeout(round(until - started, 1)) from None
            except OSError:
                raise StreamEnded(reset=True) from None
            if not data:
                raise StreamEnded(reset=False)
            self._buffer += data
        received = bytes(self._buffer[:count])
        del self._buffer[:count]
        return received


_UNKNOWN = (1010 << 3 | 2, b"\x02hi")  # an unknown field, as from a newer peer
_UNKNOWN_IN_JSON = {"colour": {"red": [1, None]}, "[x.y]": 10**400}
_INTEGERS = {FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_ENUM}


def encoded_differently(message: Message, codec: str) -> bytes:
    """Return a frame with fields in reverse order and unpacked lists; in JSON with .proto names, numbers and nulls."""
    if codec == "protobuf":
        return framed(_serialize_reversed(message, unknown=False))
    tree = json_format.MessageToDict(message, preserving_proto_field_name=True, use_integers_for_enums=True)
    return framed(json.dumps(_to_numbers(tree), indent=1).encode())


def with_unknown_fields(message: Message, codec: str) -> bytes:
    """Return a frame in which every message has an unknown field."""
    if codec == "protobuf":
        return framed(_serialize_reversed(message, unknown=True))
    return framed(json.dumps(_add_unknown(json_format.MessageToDict(message))).encode())


def _serialize_reversed(message: Message, unknown: bool) -> bytes:
    data = b""
    for field, value in reversed(message.ListFields()):
        # Only repeated fields have `extend`.
        for one in value if hasattr(value, "extend") else [value]:
            data += _serialize_field(field, one, unknown)
    return data + varint(_UNKNOWN[0]) + _UNKNOWN[1] if unknown else data


def _serialize_field(field: FieldDescriptor, value: Any, unknown: bool) -> bytes:
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return varint(field.number << 3 | 1) + struct.pack("<d", value)
    if field.type in _INTEGERS or field.type == FieldDescriptor.TYPE_BOOL:
        return varint(field.number << 3) + varint(int(value) & 2**64 - 1)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        value = _serialize_reversed(value, unknown)
    elif field.type == FieldDescriptor.TYPE_STRING:
        value = value.encode()
    elif field.type != FieldDescriptor.TYPE_BYTES:
        raise AssertionError(f"{field.full_name} has an unsupported type")
    return varint(field.number << 3 | 2) + varint(len(value)) + bytes(value)


_WRITTEN_AS_STRINGS = ("n", "start", "global_step")


def _to_numbers(tree: Any, key: str = "") -> Any:
    """Return the tree with 64-bit integers as numbers, and with a null for a field that has its default value."""
    if isinstance(tree, dict):
        return {name: _to_numbers(part, name) for name, part in reversed(tree.items())} | _find_null(tree)
    if isinstance(tree, list):
        return [_to_numbers(part, key) for part in tree]
    whole = isinstance(tree, str) and key in (*_WRITTEN_AS_STRINGS, "nvec") and re.fullmatch(r"-?\d+", tree)
    return int(tree) if whole else tree


def _find_null(tree: dict[str, Any]) -> dict[str, None]:
    """Return an optional field that the message does not have, with the value null; {} if it has all."""
    for mark, name in (("session_id", "server_version"), ("code", "retry_after_seconds"), ("environments", "host")):
        if mark in tree and name not in tree:
            return {name: None}
    return {}


def _add_unknown(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _add_unknown(part) for name, part in tree.items()} | _UNKNOWN_IN_JSON
    return [_add_unknown(part) for part in tree] if isinstance(tree, list) else tree
