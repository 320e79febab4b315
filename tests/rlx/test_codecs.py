from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax.rlx import Bye, Error, ErrorCode, Hello, Message, Ping, ProtocolError, Sender, TrainingFinished, rlx_pb2
from relaax.rlx.codecs import Codec, codec_named, codec_of
from support.rlx_messages import assert_same
from support.rlx_pair import make_hello
from support.rlx_strategies import client_messages, hellos, server_messages

CODECS = ("protobuf", "json")


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> Codec:
    return codec_named(request.param)


@pytest.mark.parametrize("name", CODECS)
@settings(deadline=None)
@given(hellos().flatmap(lambda h: st.tuples(st.just(h), client_messages(h), server_messages(h))))
def test_every_message_round_trips(name: str, case: tuple[Hello, Message, Message]) -> None:
    codec = codec_named(name)
    hello, said, answered = case
    for message, sender in ((hello, Sender.CLIENT), (said, Sender.CLIENT), (answered, Sender.SERVER)):
        payload = codec.encode(message, sender)
        assert_same(codec.decode(payload, sender), message)
        assert (payload[0] == 0x7B) == (name == "json")
        assert codec_of(payload[0]).name == name


def test_json_is_one_object_in_the_canonical_mapping() -> None:
    codec = codec_named("json")
    tree = json.loads(codec.encode(TrainingFinished("over", 2**63), Sender.SERVER))
    assert tree == {"trainingFinished": {"message": "over", "globalStep": str(2**63)}}
    hello = json.loads(codec.encode(make_hello(environments=2), Sender.CLIENT))["hello"]
    assert hello["actionSpace"] == {"discrete": {"n": "3"}}
    assert hello["observationSpace"] == {"box": {"dtype": "DTYPE_FLOAT32", "shape": [2]}}
    assert hello["autoreset"] == ["AUTORESET_DISABLED"]


def test_an_empty_message_is_still_a_message(codec: Codec) -> None:
    assert codec.decode(codec.encode(Ping(), Sender.CLIENT), Sender.CLIENT) == Ping(0)
    assert codec.decode(codec.encode(Bye(), Sender.SERVER), Sender.SERVER) == Bye("")


def test_an_unknown_error_code_is_still_an_error() -> None:
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
def test_what_is_no_json_of_a_message_is_malformed(payload: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        codec_named("json").decode(payload, Sender.CLIENT)
    assert caught.value.code is ErrorCode.MALFORMED
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("codec_name", "payload"),
    [("json", b"{}"), ("json", b'{"hello": null}'), ("json", b"[]"), ("protobuf", b"\xa2\x3f\x00")],
)
def test_no_known_message_is_unexpected(codec_name: str, payload: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        codec_named(codec_name).decode(payload, Sender.CLIENT)
    assert caught.value.code is ErrorCode.UNEXPECTED_MESSAGE


def test_there_is_no_third_codec() -> None:
    with pytest.raises(ValueError, match="yaml"):
        codec_named("yaml")


def test_secrets_are_not_shown() -> None:
    assert "hunter2" not in repr(make_hello(token="hunter2"))
