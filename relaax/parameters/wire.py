"""Serialization of messages with one long vector: one copy of the vector to write it, and none to read it.

The bytes are those of the messages in the .proto file, which other protobuf implementations can read and write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
import numpy as np
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as pb_grpc
from relaax.parameters.interfaces import FlatVector
from relaax.parameters.moments import MAX_STATISTIC_NAME, Float64Vector, Moments
from relaax.rlx.wire.varint import varint

M = TypeVar("M", bound=Message)

ALIGNMENT = 16
"""Alignment of a vector within its message, in bytes, so that the vector can be used without a copy."""

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


def float32_of(data: memoryview) -> FlatVector:
    """Return the numbers of a long field: read-only float32 [len(data) / 4]. Unaligned data is copied.

    Raises ValueError if `data` ends within a number.
    """
    if len(data) % 4:
        raise ValueError(f"a float32 vector must have a multiple of 4 bytes, not {len(data)}")
    vector: FlatVector = np.frombuffer(data, "<f4")
    if not vector.flags.aligned:
        vector = vector.copy()
        vector.flags.writeable = False
    return vector


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
        if isinstance(message, pb.PushResponse) and message.has_target:
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


PUSH_REQUEST = LongMessageWire(pb.PushRequest, "gradient")
PUSH_RESPONSE = LongMessageWire(pb.PushResponse, "parameters")
PULL_RESPONSE = LongMessageWire(pb.PullResponse, "parameters")
_SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServerService"]


class CarrierStub(pb_grpc.ParameterServerServiceStub):
    """A client stub whose Push takes a Carrier, and whose Push and Pull return one."""

    def __init__(self, channel: grpc.Channel) -> None:
        super().__init__(channel)  # type: ignore[no-untyped-call]  # generated
        self.Push = channel.unary_unary(
            f"/{_SERVICE.full_name}/Push",
            request_serializer=PUSH_REQUEST.write,
            response_deserializer=PUSH_RESPONSE.read,
        )
        self.Pull = channel.unary_unary(
            f"/{_SERVICE.full_name}/Pull",
            request_serializer=pb.PullRequest.SerializeToString,
            response_deserializer=PULL_RESPONSE.read,
        )


def add_to_server(servicer: Any, server: grpc.Server) -> None:
    """Add a servicer whose Push takes a Carrier, and whose Push and Pull return one."""
    readers = {"Push": PUSH_REQUEST.read}
    writers: dict[str, Any] = {"Push": PUSH_RESPONSE.write, "Pull": PULL_RESPONSE.write}
    handlers = {
        method.name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, method.name),
            request_deserializer=readers.get(method.name, GetMessageClass(method.input_type).FromString),
            response_serializer=writers.get(method.name, GetMessageClass(method.output_type).SerializeToString),
        )
        for method in _SERVICE.methods
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers),))


def _read_varint(data: bytes, at: int, longest: int = _LONGEST_LENGTH) -> tuple[int, int]:
    """Return the number at `at` and the position after it. Raises IndexError if it has over `longest` bytes."""
    number = 0
    for index in range(longest):
        byte = data[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, at + index + 1
    raise IndexError(f"a number has more than {longest} bytes")


def statistics_to_messages(statistics: Mapping[str, Moments]) -> list[pb.Moments]:
    """Return one message for each statistic."""
    return [
        pb.Moments(name=name, count=value.count, mean=_bytes(value.mean), m2=_bytes(value.m2))
        for name, value in statistics.items()
    ]


def statistics_from_messages(messages: Iterable[pb.Moments]) -> dict[str, Moments]:
    """Return the statistics by name. Raises ValueError if a name is repeated, or if moments are invalid."""
    statistics: dict[str, Moments] = {}
    for message in messages:
        name = message.name
        if name in statistics:
            raise ValueError(f"statistic {name[:MAX_STATISTIC_NAME]!r} is repeated in one message")
        try:
            statistics[name] = Moments(message.count, _vector(message.mean), _vector(message.m2))
        except ValueError as error:
            raise ValueError(f"statistic {name[:MAX_STATISTIC_NAME]!r}: {error}") from None
    return statistics


def _bytes(vector: Float64Vector) -> bytes:
    return vector.astype("<f8", copy=False).tobytes()


def _vector(data: bytes) -> Float64Vector:
    if len(data) % 8:
        raise ValueError(f"a float64 vector must have a multiple of 8 bytes, not {len(data)}")
    return np.frombuffer(data, "<f8")
