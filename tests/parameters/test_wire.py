"""Messages with a separate vector, compared with protobuf's own parser."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.wire import (
    PULL_RESPONSE,
    PUSH_REQUEST,
    PUSH_RESPONSE,
    float32_of,
)
from relaax.transport.long_messages import ALIGNMENT, Carrier, LongMessageWire

UINT64 = st.integers(0, 2**64 - 1)
VECTORS = st.lists(st.floats(width=32, allow_nan=False), max_size=40).map(lambda numbers: np.array(numbers, np.float32))
MOMENTS = st.builds(pb.Moments, name=st.text(max_size=300), count=st.floats(allow_nan=False), mean=st.binary())
REPORTS = st.builds(
    pb.MetricsReport,
    episodes=st.lists(st.builds(pb.EpisodeResult, episode_return=st.floats(allow_nan=False), length=st.integers(0, 9))),
    gauges=st.lists(st.builds(pb.Gauge, name=st.text(), value=st.floats(allow_nan=False))),
)
REQUESTS = st.builds(
    pb.PushRequest,
    worker_id=st.text(),
    push_id=UINT64,
    base_version=UINT64,
    global_step=UINT64,
    want_parameters=st.booleans(),
    withheld=st.booleans(),
    report=REPORTS,
    statistics=st.lists(MOMENTS, max_size=3),
)


def whole(carrier: Carrier[pb.PushRequest]) -> pb.PushRequest:
    """Return the message in protobuf's form, without padding."""
    message = pb.PushRequest()
    message.CopyFrom(carrier.message)
    message.gradient = bytes(carrier.data)
    message.ClearField("padding")
    return message


def parsed(data: bytes) -> pb.PushRequest | None:
    """Return the message as protobuf parses it; None if it refuses."""
    try:
        message = pb.PushRequest.FromString(data)
    except DecodeError:
        return None
    message.ClearField("padding")
    return message


@st.composite
def foreign(draw: st.DrawFn) -> bytes:
    """Bytes that another writer may produce: fields in any order, repeated or unknown, with or without a vector."""
    parts = [draw(REQUESTS).SerializeToString() for _ in range(draw(st.integers(0, 2)))]
    parts += [
        pb.PushRequest(gradient=draw(VECTORS).tobytes()).SerializeToString() for _ in range(draw(st.integers(0, 2)))
    ]
    # Fields 200 to 203, of every wire type.
    unknown = [b"\xc0\x0c\x96\x01", b"\xc9\x0c" + bytes(8), b"\xd2\x0c\x02ab", b"\xdd\x0c" + bytes(4)]
    parts += draw(st.lists(st.sampled_from(unknown), max_size=3))
    return b"".join(draw(st.permutations(parts)))


@given(message=REQUESTS, vector=VECTORS)
def test_protobuf_reads_what_is_written(message: pb.PushRequest, vector: np.ndarray) -> None:
    written = PUSH_REQUEST.write(Carrier(message, vector))
    expected = pb.PushRequest()
    expected.CopyFrom(message)
    expected.gradient = vector.tobytes()
    assert parsed(written) == expected
    if len(vector):
        assert (len(written) - vector.nbytes) % ALIGNMENT == 0
        assert written.endswith(vector.tobytes())


@given(message=REQUESTS, vector=VECTORS)
def test_written_messages_are_read_without_a_copy(message: pb.PushRequest, vector: np.ndarray) -> None:
    written = PUSH_REQUEST.write(Carrier(message, vector))
    carrier = PUSH_REQUEST.read(written)
    np.testing.assert_array_equal(float32_of(carrier.data), vector)
    carrier.message.ClearField("padding")
    assert carrier.message == message
    if len(vector):
        assert carrier.data.obj is written


@given(message=REQUESTS, vector=VECTORS)
def test_messages_written_by_protobuf_are_read(message: pb.PushRequest, vector: np.ndarray) -> None:
    message.gradient = vector.tobytes()
    carrier = PUSH_REQUEST.read(message.SerializeToString())
    assert whole(carrier) == message
    assert carrier.message.gradient == b""
    np.testing.assert_array_equal(float32_of(carrier.data), vector)


@given(data=foreign())
def test_fields_in_any_order_are_read(data: bytes) -> None:
    assert whole(PUSH_REQUEST.read(data)) == parsed(data)


@given(data=st.one_of(foreign(), st.binary(max_size=100)), cut=st.integers(0, 400), flip=st.integers(0, 255))
def test_damaged_bytes_are_refused_if_protobuf_refuses_them(data: bytes, cut: int, flip: int) -> None:
    damaged = bytearray(data[: len(data) - cut % (len(data) + 1)])
    if damaged:
        damaged[cut % len(damaged)] ^= flip
    expected = parsed(bytes(damaged))
    if expected is None:
        with pytest.raises(DecodeError):
            PUSH_REQUEST.read(bytes(damaged))
    else:
        assert whole(PUSH_REQUEST.read(bytes(damaged))) == expected


def test_a_message_of_many_fields_is_left_to_protobuf() -> None:
    many = pb.PushRequest(push_id=1).SerializeToString() * 100_000
    carrier = PUSH_REQUEST.read(many + pb.PushRequest(gradient=bytes(8)).SerializeToString())
    assert (carrier.message.push_id, bytes(carrier.data)) == (1, bytes(8))


@pytest.mark.parametrize("data", [b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x2a\x05abc", b"\x80" * 100])
def test_invalid_lengths_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        PUSH_REQUEST.read(data)


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        (PUSH_RESPONSE, pb.PushResponse(version=3, staleness=2, statistics=[pb.Moments(name="s")])),
        (PULL_RESPONSE, pb.PullResponse(version=3, finished=True)),
    ],
)
def test_responses_are_written_and_read(wire: LongMessageWire, message: pb.PushResponse | pb.PullResponse) -> None:
    vector = np.arange(5, dtype=np.float32)
    written = wire.write(Carrier(message, vector))
    assert type(message).FromString(written).parameters == vector.tobytes()
    np.testing.assert_array_equal(float32_of(wire.read(written).data), vector)
    assert not len(wire.read(wire.write(Carrier(message))).data)


def test_only_unaligned_numbers_are_copied() -> None:
    memory = np.arange(3, dtype=np.float32).tobytes()
    odd = memoryview(b"x" + memory)[1:]
    for data in (memoryview(memory), odd):
        vector = float32_of(data)
        np.testing.assert_array_equal(vector, [0, 1, 2])
        assert vector.flags.aligned
        assert not vector.flags.writeable


def test_incomplete_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4 bytes, not 6"):
        float32_of(memoryview(bytes(6)))
