from __future__ import annotations

import json
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax.rlx import (
    Actions,
    Bye,
    Error,
    ErrorCode,
    Hello,
    Message,
    Ping,
    ProtocolError,
    Sender,
    TrainingFinished,
    rlx_pb2,
)
from relaax.rlx.wire import decoding
from relaax.rlx.wire.codecs import Codec, codec_named, codec_of
from support.rlx_messages import assert_same
from support.rlx_pair import batch, make_hello, make_step
from support.rlx_strategies import client_messages, hellos, server_messages
from support.rlx_vector_recorder import varint

CODECS = ("protobuf", "json")


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> Codec:
    return codec_named(request.param)


@pytest.mark.parametrize("name", CODECS)
@settings(deadline=None, max_examples=40)
@given(hellos().flatmap(lambda h: st.tuples(st.just(h), client_messages(h), server_messages(h))))
def test_every_message_round_trips(name: str, case: tuple[Hello, Message, Message]) -> None:
    codec = codec_named(name)
    hello, request, reply = case
    for message, sender in ((hello, Sender.CLIENT), (request, Sender.CLIENT), (reply, Sender.SERVER)):
        payload = codec.encode(message, sender)
        assert_same(codec.decode(payload, sender), message)
        assert (payload[0] == 0x7B) == (name == "json")
        assert codec_of(payload[0]).name == name


def test_json_uses_protobufs_canonical_mapping() -> None:
    codec = codec_named("json")
    tree = json.loads(codec.encode(TrainingFinished("over", 2**63), Sender.SERVER))
    assert tree == {"trainingFinished": {"message": "over", "globalStep": str(2**63)}}
    hello = json.loads(codec.encode(make_hello(environments=2), Sender.CLIENT))["hello"]
    assert hello["actionSpace"] == {"discrete": {"n": "3"}}
    assert hello["observationSpace"] == {"box": {"dtype": "DTYPE_FLOAT32", "shape": [2]}}
    assert hello["autoreset"] == ["AUTORESET_DISABLED"]


def test_message_without_fields_round_trips(codec: Codec) -> None:
    assert codec.decode(codec.encode(Ping(), Sender.CLIENT), Sender.CLIENT) == Ping(0)
    assert codec.decode(codec.encode(Bye(), Sender.SERVER), Sender.SERVER) == Bye("")


def test_unknown_error_code_is_decoded_as_unknown() -> None:
    wire = rlx_pb2.ServerMessage(error={"code": 999, "message": "new", "retryable": True})  # type: ignore[dict-item]
    expected = Error(ErrorCode.UNKNOWN, "new", True)
    assert codec_named("protobuf").decode(wire.SerializeToString(), Sender.SERVER) == expected
    payload = b'{"error": {"code": "ERROR_CODE_NEW", "message": "new", "retryable": true}}'
    assert codec_named("json").decode(payload, Sender.SERVER) == expected


@pytest.mark.parametrize(
    "payload",
    [b"{", b'{"ping": ', b"\xef\xbb\xbf{}", b"{}\x00", '{"ping":{}}'.encode("utf-16"), b'{"ping": {"nonce": 1e400}}']
    + [b'{"ping": {"nonce": %s}}' % b for b in (b"-1", b"4294967296", b"1.5", b'"x"', b"9" * 5000, b"NaN", b"[]")]
    + [
        b'{"metrics": {"scalars": [null]}}',
        b'{"metrics": {"scalars": {}}}',
        b'{"step": {"observation": [{"data": 7}]}}',
    ]
    + [b'{"bye": {"reason": "\\ud800"}}', b'{"hello": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001, b"[" * 60000]
    + [
        b'{"hello": ' + opened * 100 + b"1" + closed * 100 + b"}" for opened, closed in ((b'{"a":', b"}"), (b"[", b"]"))
    ],
)
def test_invalid_json_message_is_malformed(payload: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        codec_named("json").decode(payload, Sender.CLIENT)
    assert caught.value.code is ErrorCode.MALFORMED
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("codec_name", "payload"),
    [("json", b"{}"), ("json", b'{"hello": null}'), ("protobuf", b"\xa2\x3f\x00")],
)
def test_frame_without_known_message_is_unexpected(codec_name: str, payload: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        codec_named(codec_name).decode(payload, Sender.CLIENT)
    assert caught.value.code is ErrorCode.UNEXPECTED_MESSAGE


@pytest.mark.parametrize("payload", [b"<hello/>", b"[1]", b'\xef\xbb\xbf{"hello":{}}', b' {"hello":{}}'])
def test_nearly_json_payload_error_names_the_first_byte(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="no Protobuf message; a message in JSON begins with { at its first byte"):
        codec_named("protobuf").decode(payload, Sender.CLIENT)


PING, PONG, BYE = b"\x32\x02\x08\x07", b"\x3a\x00", b"\x42\x00"  # fields 6, 7 and 8 of both envelopes
UNKNOWN = b"\xa2\x3f\x02hi"


@pytest.mark.parametrize("sender", Sender)
@pytest.mark.parametrize("payload", [PING + PONG, PING + PING, PING + BYE + UNKNOWN, UNKNOWN + BYE + BYE, PING * 9])
def test_two_messages_in_one_frame_are_malformed(payload: bytes, sender: Sender) -> None:
    with pytest.raises(ProtocolError, match="more than one message") as caught:
        codec_named("protobuf").decode(payload, sender)
    assert caught.value.code is ErrorCode.MALFORMED


@pytest.mark.parametrize("sender", Sender)
@pytest.mark.parametrize("payload", [PING, PING + UNKNOWN, UNKNOWN + PING + UNKNOWN, b"\xb2\x80\x00\x82\x00\x08\x07"])
def test_message_with_unknown_fields_or_long_varints_is_read(payload: bytes, sender: Sender) -> None:
    assert codec_named("protobuf").decode(payload, sender) == Ping(7)


def test_step_or_actions_with_second_message_is_malformed() -> None:
    """The layouts of `relaax.rlx.wire.layouts` refuse them too, in any order."""
    hello = make_hello()
    codec = codec_named("protobuf")
    codec.configure(hello)
    step = codec.encode(make_step(hello), Sender.CLIENT)
    actions = codec.encode(Actions(batch(hello.action_space, 1)), Sender.SERVER)
    for sender, message in ((Sender.CLIENT, step), (Sender.SERVER, actions)):
        codec.decode(message, sender)
        for payload in (message * 2, message + PING, PING + message):
            with pytest.raises(ProtocolError, match="more than one message"):
                codec.decode(payload, sender)


@pytest.mark.parametrize(
    "rest",
    ["12 01 ff", "42 03 0a 09 01", "42 02 0a 00 42 02 12 00", "58 63", "60 09", "50 00", "6a 02 2f ff"],
    ids=["name", "space", "spaces", "autoreset", "mode", "environments", "session"],
)
def test_version_is_checked_before_other_fields(rest: str) -> None:
    """A hello of another version may be invalid in this version."""
    for fields in (f"08 02 {rest}", f"{rest} 08 02", rest):
        hello = bytes.fromhex(fields)
        with pytest.raises(ProtocolError) as caught:
            codec_named("protobuf").decode(bytes([0x0A, len(hello)]) + hello, Sender.CLIENT)
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("number", "element"), [(5, b"\x0a\x00"), (3, b"\x12\x05\x08\x02\x12\x01\x00"), (3, b"\x3a\x02\x18\x01")]
)
def test_long_list_is_refused_before_objects_are_made(number: int, element: bytes) -> None:
    """A megabyte of scalars, leaves or episodes is refused before any object except Protobuf's own is made."""
    body = element * (2**20 // len(element))
    payload = bytes([number << 3 | 2]) + varint(len(body)) + body
    with (
        patch.object(decoding, "read_array") as read_array,
        patch.object(decoding, "Episode") as episode,
        pytest.raises(ProtocolError) as caught,
    ):
        codec_named("protobuf").decode(payload, Sender.CLIENT)
    assert caught.value.code is ErrorCode.INVALID_VALUE
    assert read_array.call_count == episode.call_count == 0


def test_unknown_codec_name_is_refused() -> None:
    with pytest.raises(ValueError, match="yaml"):
        codec_named("yaml")


def test_hello_repr_does_not_show_the_token() -> None:
    assert "hunter2" not in repr(make_hello(token="hunter2"))
