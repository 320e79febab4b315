"""Convert named moments to messages, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.moments import MAX_STATISTIC_NAME, Float64Vector, Moments


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
