"""Serialization of messages with one long field: one copy of its content to write it, and none to read it.

The bytes are messages of the .proto file: other protobuf implementations can read and write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from relaax.rlx.wire.varint import varint

M = TypeVar("M", bound=Message)

ALIGNMENT = 16
"""Alignment of a long field within its message, in bytes, so that its content can be used without a copy."""

_PADDING = "padding"
_MAX_FIELDS = 256
_LONGEST_LENGTH, _LONGEST_VARINT = 5, 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NO_BYTES = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Carrier(Generic[M]):
    """A message without its long field, and the content of that field: contiguous bytes or an array.

    `target` follows `data` in the long field of an answer with `has_target`, and has the same length. After reading,
    both are memoryviews of bytes. Do not change them before the message is written.
    """

    message: M
    data: Any = _NO_BYTES
    target: Any = _NO_BYTES


class LongMessageWire(Generic[M]):
    """Writer and reader of one message type that has a long `field`, and a field named padding.

    Both fields are of type bytes, with numbers up to 15, so that each tag is one byte.
    """

    def __init__(self, message_type: type[M], field: str) -> None:
        self._type = message_type
        self._field = field
        fields = message_type.DESCRIPTOR.fields_by_name
        self._tag, self._padding_tag = (fields[name].number << 3 | _BYTES for name in (field, _PADDING))

    def write(self, carrier: Carrier[M]) -> bytes:
        """Return the message as bytes, with the long field last and aligned."""
        head = carrier.message.SerializeToString()
        data = memoryview(carrier.data).cast("B")
        if not len(data):
            return head
        target = memoryview(carrier.target).cast("B")
        tag = bytes((self._tag, *varint(len(data) + len(target))))
        padding = -(len(head) + 2 + len(tag)) % ALIGNMENT
        return b"".join((head, bytes((self._padding_tag, padding)), bytes(padding), tag, data, target))

    def read(self, data: bytes) -> Carrier[M]:
        """Return the message. Raises DecodeError if protobuf cannot parse it.

        The long field is a view of `data` if it is the last field, as `write` places it; else it is copied.
        """
        last = self._last_field(data)
        if last is not None:
            head, start = last
            message, long = self._type.FromString(data[:head]), memoryview(data)[start:]
        else:
            message = self._type.FromString(data)
            long = memoryview(getattr(message, self._field))
            message.ClearField(self._field)
        if getattr(message, "has_target", False):
            return Carrier(message, long[: len(long) // 2], long[len(long) // 2 :])
        return Carrier(message, long)

    def _last_field(self, data: bytes) -> tuple[int, int] | None:
        """Return the positions of the long field and of its bytes if it is the last of at most `_MAX_FIELDS` fields.

        Else return None. Malformed bytes also return None, because protobuf's parser raises a better error for them.
        """
        at, end = 0, len(data)
        try:
            for _ in range(_MAX_FIELDS):
                begin = at
                tag, at = _read_varint(data, at)
                kind = tag & 7
                if kind == _BYTES:
                    length, at = _read_varint(data, at)
                    if tag == self._tag:
                        return (begin, at) if at + length == end else None
                    at += length
                elif kind == _VARINT:
                    _, at = _read_varint(data, at, _LONGEST_VARINT)
                elif kind in (_FIXED64, _FIXED32):
                    at += 8 if kind == _FIXED64 else 4
                else:
                    return None
        except IndexError:
            pass
        return None


def add_service(
    service: ServiceDescriptor,
    servicer: Any,
    server: grpc.Server,
    requests: Mapping[str, LongMessageWire[Any]],
    responses: Mapping[str, LongMessageWire[Any]],
) -> None:
    """Add a servicer whose methods take or return a Carrier, if `requests` or `responses` has the method's name."""
    readers = {name: wire.read for name, wire in requests.items()}
    writers = {name: wire.write for name, wire in responses.items()}
    handlers = {
        method.name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, method.name),
            request_deserializer=readers.get(method.name, GetMessageClass(method.input_type).FromString),
            response_serializer=writers.get(method.name, GetMessageClass(method.output_type).SerializeToString),
        )
        for method in service.methods
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


def _read_varint(data: bytes, at: int, longest: int = _LONGEST_LENGTH) -> tuple[int, int]:
    """Return the number at `at` and the position after it. Raises IndexError if it has over `longest` bytes."""
    number = 0
    for index in range(longest):
        byte = data[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, at + index + 1
    raise IndexError(f"a number has more than {longest} bytes")
