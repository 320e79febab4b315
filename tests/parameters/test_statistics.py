from __future__ import annotations

import numpy as np
import pytest

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.moments import Moments
from relaax.parameters.wire import statistics_from_messages, statistics_to_messages


def test_a_round_trip_keeps_every_bit() -> None:
    sent = {"a": Moments.of(np.random.default_rng(0).normal(size=(7, 3))), "b": Moments.zeros(1)}
    received = statistics_from_messages(statistics_to_messages(sent))
    assert list(received) == ["a", "b"]
    for name, moments in sent.items():
        assert received[name].count == moments.count
        assert received[name].mean.tobytes() == moments.mean.tobytes()
        assert received[name].m2.tobytes() == moments.m2.tobytes()


def test_the_bytes_are_little_endian_float64() -> None:
    (message,) = statistics_to_messages({"a": Moments(2, np.array([1.0]), np.array([0.5]))})
    assert (message.name, message.count) == ("a", 2)
    assert (message.mean.hex(), message.m2.hex()) == ("000000000000f03f", "000000000000e03f")


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([pb.Moments(name="a", mean=bytes(7), m2=bytes(8))], "statistic 'a': a float64 vector .* not 7"),
        ([pb.Moments(name="a", count=-1, mean=bytes(8), m2=bytes(8))], r"statistic 'a': the count .* not -1\.0"),
        ([pb.Moments(name="a")] * 2, "statistic 'a' is repeated"),
    ],
)
def test_invalid_messages_are_refused(messages: list[pb.Moments], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        statistics_from_messages(messages)
