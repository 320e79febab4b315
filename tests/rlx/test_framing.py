from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaax.rlx import ErrorCode, LocalProtocolError, ProtocolError
from relaax.rlx.wire.framing import FrameReader, frame


def drain(reader: FrameReader) -> list[bytes]:
    found = []
    while (payload := reader.next_frame()) is not None:
        found.append(payload)
    return found


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.data())
def test_frames_received_in_any_pieces_are_read(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frame(payload, 40) for payload in payloads)
    reader, found = FrameReader(40), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        reader.feed(stream[:size])
        stream = stream[size:]
        found += drain(reader)
        assert len(reader) < 4 + 40
    assert found == payloads
    assert len(reader) == 0


def test_length_above_limit_is_refused_before_its_body() -> None:
    reader = FrameReader(10)
    reader.feed(struct.pack(">I", 11))
    with pytest.raises(ProtocolError) as caught:
        reader.next_frame()
    assert caught.value.code is ErrorCode.FRAME_TOO_LARGE
    reader.clear()
    reader.feed(frame(bytes(10), 10))
    assert reader.next_frame() == bytes(10)


def test_empty_frame_is_refused() -> None:
    reader = FrameReader()
    reader.feed(bytes(4))
    with pytest.raises(ProtocolError) as caught:
        reader.next_frame()
    assert caught.value.code is ErrorCode.MALFORMED


def test_payload_above_limit_is_not_framed() -> None:
    with pytest.raises(ProtocolError, match="11 bytes; the limit is 10"):
        frame(bytes(11), 10)


@pytest.mark.parametrize(
    ("received", "hint"),
    [
        (b'{"hello":{}}', "read from the text '{\"he': 4 bytes of length precede a message"),
        ((300).to_bytes(4, "little"), "a length is big-endian, and this one is 300 in little-endian"),
        ((1 << 20).to_bytes(4, "big"), "1048576 bytes; the limit is 65536$"),
    ],
)
def test_length_above_limit_error_hints_at_the_cause(received: bytes, hint: str) -> None:
    reader = FrameReader()
    reader.feed(received)
    with pytest.raises(ProtocolError, match=hint) as caught:
        reader.next_frame()
    assert caught.value.code is ErrorCode.FRAME_TOO_LARGE


def test_feeding_beyond_one_whole_frame_is_refused() -> None:
    reader = FrameReader(10)
    reader.feed(frame(bytes(10), 10) * 3)
    with pytest.raises(LocalProtocolError):
        reader.feed(b"x")
    assert drain(reader) == [bytes(10)] * 3
    reader.feed(b"x")


def test_first_byte_is_known_before_the_frame_is_complete() -> None:
    reader = FrameReader()
    reader.feed(struct.pack(">I", 100))
    assert reader.first_byte() is None
    reader.feed(b"{")
    assert reader.first_byte() == 0x7B
    assert reader.next_frame() is None


def test_whole_frame_is_buffered_until_it_is_read() -> None:
    reader = FrameReader(10)
    reader.feed(memoryview(bytearray(frame(b"{}", 10))))
    assert len(reader) == 6
    assert reader.first_byte() == 0x7B
    reader.feed(frame(b"next", 10)[:3])
    assert len(reader) == 9
    assert reader.next_frame() == b"{}"
    assert reader.next_frame() is None
    reader.feed(frame(b"next", 10)[3:])
    assert reader.next_frame() == b"next"
    reader.feed(frame(b"gone", 10))
    reader.clear()
    assert len(reader) == 0
    assert reader.next_frame() is None


def test_whole_frame_is_copied_from_the_callers_buffer() -> None:
    reader, buffer = FrameReader(10), bytearray(frame(b"first", 10))
    reader.feed(memoryview(buffer))
    buffer[:] = frame(b"other", 10)
    assert reader.next_frame() == b"first"


def test_lower_limit_applies_to_buffered_frame() -> None:
    reader = FrameReader(10)
    reader.feed(frame(bytes(10), 10))
    reader.max_frame_bytes = 9
    with pytest.raises(ProtocolError, match="10 bytes; the limit is 9"):
        reader.next_frame()


@pytest.mark.parametrize("extra", [0, 1, 3, 4, 5, 13])
def test_frames_of_the_limit_in_pieces_of_every_size_are_read(extra: int) -> None:
    """All sizes of the first piece are combined with all sizes of the others. Frames are read after each piece."""
    payloads = [bytes([kind]) * 10 for kind in (1, 2, 3)]
    stream = b"".join(frame(payload, 10) for payload in payloads) + frame(b"x" * 10, 10)[:extra]
    for first in range(1, len(stream)):
        for size in range(1, len(stream) - first + 1):
            reader, found = FrameReader(10), []
            pieces = [stream[:first], *(stream[at : at + size] for at in range(first, len(stream), size))]
            for piece in pieces:
                reader.feed(piece)
                found += drain(reader)
            assert found == payloads
            assert len(reader) == extra


def test_pending_frames_stay_buffered() -> None:
    reader = FrameReader(10)
    assert list(reader.pending_frames()) == []
    reader.feed(frame(b"whole", 10))
    assert list(reader.pending_frames()) == list(reader.pending_frames()) == [b"whole"]
    reader.feed(frame(b"next", 10) + frame(b"part", 10)[:-1])
    assert list(reader.pending_frames()) == [b"whole", b"next"]
    assert drain(reader) == [b"whole", b"next"]
    assert list(reader.pending_frames()) == []
    reader.feed(b"t" + bytes(4))
    with pytest.raises(ProtocolError, match="length 0"):
        list(reader.pending_frames())
    assert reader.next_frame() == b"part"
