"""Write messages with one long vector with one copy of the vector, and read them with none.

On the wire they are the messages of the .proto file: any reader of protobuf takes them, and any writer's are taken.
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
"""Bytes. A vector begins at a multiple of this in its message, so that it can be used without a copy."""

_PADDING = "padding"
_MAX_FIELDS = 256
_LONGEST_LENGTH, _LONGEST_VARINT = 5, 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NO_BYTES = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Carrier(Generic[M]):
    """A message whose long field is empty, and its content apart: contiguous bytes, or an array.

    What is read has a memoryview of bytes. What is to be written may not change until it is written.
    """

    message: M
    data: Any = _NO_BYTES


def float32_of(data: memoryview) -> FlatVector:
    """Return the numbers of a long field: read-only float32 [len(data) / 4], a copy only if they are not aligned.

    Raises ValueError if they are no whole numbers.
    """
    if len(data) % 4:
        raise ValueError(f"a vector is float32, four bytes each, not {len(data)} bytes")
    vector: FlatVector = np.frombuffer(data, "<f4")
    if not vector.flags.aligned:
        vector = vector.copy()
        vector.flags.writeable = False
    return vector


class LongMessageWire(Generic[M]):
    """Writes and reads messages of one type that has a long `field` and one named padding.

    Both are of type bytes and have numbers up to 15, so that their tags are one byte each.
    """

    def __init__(self, message_type: type[M], field: str) -> None:
        self._type = message_type
        self._field = field
        fields = message_type.DESCRIPTOR.fields_by_name
        self._tag, self._padding_tag = (fields[name].number << 3 | _BYTES for name in (field, _PADDING))

    def write(self, carrier: Carrier[M]) -> bytes:
        """Return the message as bytes, the long field last and aligned."""
        head = carrier.message.SerializeToString()
        data = memoryview(carrier.data).cast("B")
        if not len(data):
            return head
        tag = bytes((self._tag, *varint(len(data))))
        padding = -(len(head) + 2 + len(tag)) % ALIGNMENT
        return b"".join((head, bytes((self._padding_tag, padding)), bytes(padding), tag, data))

    def read(self, data: bytes) -> Carrier[M]:
        """Return the message. Raises DecodeError if its own parser does.

        The long field is a view of `data` if it is the last field, as `write` makes it; else it is copied.
        """
        last = self._last_field(data)
        if last is not None:
            head, start = last
            return Carrier(self._type.FromString(data[:head]), memoryview(data)[start:])
        message = self._type.FromString(data)
        long = getattr(message, self._field)
        message.ClearField(self._field)
        return Carrier(message, memoryview(long))

    def _last_field(self, data: bytes) -> tuple[int, int] | None:
        """Return where the long field and its bytes begin, if it comes once and last, after a bounded number of others.

        Else None, also if the bytes are no message: its own parser says so better.
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
    """The service as its client sees it; Push takes a Carrier, and Push and Pull return one."""

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
    """Serve what has the service's methods; its Push takes a Carrier, its Push and Pull answer with one."""
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
    """Return the number at `at`, and where it ends. Raises IndexError if it does not end, or not soon enough."""
    number = 0
    for index in range(longest):
        byte = data[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, at + index + 1
    raise IndexError(f"more than {longest} bytes of one number")


def statistics_to_messages(statistics: Mapping[str, Moments]) -> list[pb.Moments]:
    """Return one message for each."""
    return [
        pb.Moments(name=name, count=value.count, mean=_bytes(value.mean), m2=_bytes(value.m2))
        for name, value in statistics.items()
    ]


def statistics_from_messages(messages: Iterable[pb.Moments]) -> dict[str, Moments]:
    """By name. Raises ValueError, with the name, if a name comes twice or moments are none (see `Moments`)."""
    statistics: dict[str, Moments] = {}
    for message in messages:
        name = message.name
        if name in statistics:
            raise ValueError(f"statistic {name[:MAX_STATISTIC_NAME]!r} comes twice in one message")
        try:
            statistics[name] = Moments(message.count, _vector(message.mean), _vector(message.m2))
        except ValueError as error:
            raise ValueError(f"statistic {name[:MAX_STATISTIC_NAME]!r}: {error}") from None
    return statistics


def _bytes(vector: Float64Vector) -> bytes:
    return vector.astype("<f8", copy=False).tobytes()


def _vector(data: bytes) -> Float64Vector:
    if len(data) % 8:
        raise ValueError(f"a vector is float64, eight bytes each, not {len(data)} bytes")
    return np.frombuffer(data, "<f8")
