"""Serialization of the parameter server's messages: long vectors without needless copies, and statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import grpc
import numpy as np

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as pb_grpc
from relaax.parameters.interfaces import FlatVector
from relaax.parameters.moments import MAX_STATISTIC_NAME, Float64Vector, Moments
from relaax.transport.long_messages import LongMessageWire, add_service


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
    answers: dict[str, LongMessageWire[Any]] = {"Push": PUSH_RESPONSE, "Pull": PULL_RESPONSE}
    add_service(_SERVICE, servicer, server, {"Push": PUSH_REQUEST}, answers)


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
