"""Who has not waited for its turn: what was received before an answer is judged as it was before the answer."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.rlx import (
    NEED_DATA,
    Actions,
    Bye,
    ClientConnection,
    ConnectionClosed,
    EpisodeReturns,
    Error,
    ErrorCode,
    Init,
    Message,
    Metrics,
    Ping,
    Pong,
    RemoteProtocolError,
    Reset,
    Sender,
    ServerConnection,
    State,
    Welcome,
)
from relaax.rlx.wire.codecs import codec_named
from relaax.rlx.wire.framing import frame
from support.rlx_messages import assert_same
from support.rlx_pair import Pair, batch, events, make_hello, make_step

HELLO = make_hello()
INIT = Init(batch(HELLO.observation_space, 1))
STEP = make_step(HELLO)
ACTIONS = Actions(batch(HELLO.action_space, 1))
CODECS = pytest.mark.parametrize("codec", ["protobuf", "json"])


def said(codec: str, *messages: Message, sender: Sender = Sender.CLIENT) -> bytes:
    return b"".join(frame(codec_named(codec).encode(message, sender), 2**20) for message in messages)


def expect_unexpected(server: ServerConnection, answer: Message) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        server.send(answer)
    assert caught.value.code is ErrorCode.UNEXPECTED_MESSAGE
    assert server.state is State.ERROR
    assert server.send(Error.of(caught.value))


@CODECS
def test_a_conversation_in_one_packet_is_answered_to_its_first_message_only(codec: str) -> None:
    server = ServerConnection()
    server.receive_data(said(codec, HELLO, INIT, STEP))
    assert_same(server.next_event(), HELLO)
    expect_unexpected(server, Welcome("id", "da3c"))


@CODECS
@pytest.mark.parametrize("early", [STEP, INIT, Reset(np.zeros(1)), HELLO], ids=lambda message: type(message).__name__)
def test_a_message_that_comes_before_the_answer_is_too_early(codec: str, early: Message) -> None:
    """In a packet with the one that is answered, or later on; whether it is read before the answer or not."""
    for together in (True, False):
        for read in (True, False):
            pair = Pair(codec)
            pair.play()
            pair.server.receive_data(said(codec, STEP, early) if together else said(codec, STEP))
            assert_same(pair.server.next_event(), STEP)
            if not together:
                pair.server.receive_data(said(codec, early))
            if read:
                with pytest.raises(RemoteProtocolError) as caught:
                    pair.server.next_event()
                assert caught.value.code is ErrorCode.UNEXPECTED_MESSAGE
            else:
                expect_unexpected(pair.server, ACTIONS)


@CODECS
def test_returns_are_waited_for_as_actions_are(codec: str) -> None:
    pair = Pair(codec)
    pair.play()
    pair.server.receive_data(said(codec, Reset(np.zeros(1)), INIT))
    assert isinstance(pair.server.next_event(), Reset)
    expect_unexpected(pair.server, EpisodeReturns(np.zeros(1)))


@CODECS
def test_what_may_be_said_meanwhile_is_heard_before_the_answer_or_after_it(codec: str) -> None:
    meanwhile: list[Message] = [Ping(1), Metrics((("a", 1.0),)), Pong(2), Ping(3)]
    for read in range(len(meanwhile) + 1):
        pair = Pair(codec)
        pair.play()
        pair.server.receive_data(said(codec, STEP, *meanwhile))
        assert_same(pair.server.next_event(), STEP)
        assert [pair.server.next_event() for _ in range(read)] == meanwhile[:read]
        pair.server.send(Pong(1))
        pair.server.send(ACTIONS)
        assert events(pair.server) == meanwhile[read:]
        pair.server.receive_data(said(codec, STEP))
        assert_same(pair.server.next_event(), STEP)


@CODECS
def test_after_a_bye_nothing_is_looked_at(codec: str) -> None:
    pair = Pair(codec)
    pair.play()
    pair.server.receive_data(said(codec, STEP, Ping(1), Bye("x"), STEP))
    assert_same(pair.server.next_event(), STEP)
    assert pair.server.send(ACTIONS)
    assert events(pair.server) == [Ping(1), Bye("x"), ConnectionClosed()]


@CODECS
def test_a_frame_that_is_whole_only_after_the_answer_is_judged_then(codec: str) -> None:
    pair = Pair(codec)
    pair.play()
    early = said(codec, STEP)
    pair.server.receive_data(said(codec, STEP) + early[:-1])
    assert_same(pair.server.next_event(), STEP)
    assert pair.server.next_event() is NEED_DATA
    assert pair.server.send(ACTIONS)
    pair.server.receive_data(early[-1:])
    assert_same(pair.server.next_event(), STEP)


@pytest.mark.parametrize("bad", [b"\0\0\0\0", b"\x7f\xff\xff\xff", frame(b"\xff", 9), frame(b"\x32\x00\x3a\x00", 9)])
def test_what_is_no_message_is_found_before_the_answer(bad: bytes) -> None:
    pair = Pair()
    pair.play()
    pair.server.receive_data(said("protobuf", STEP, Ping(1)) + bad)
    assert_same(pair.server.next_event(), STEP)
    with pytest.raises(RemoteProtocolError) as caught:
        pair.server.send(ACTIONS)
    assert caught.value.code in (ErrorCode.MALFORMED, ErrorCode.FRAME_TOO_LARGE)


@CODECS
def test_a_client_does_not_take_an_answer_for_one_to_what_it_has_yet_to_ask(codec: str) -> None:
    client = ClientConnection(codec)
    client.send(HELLO)
    client.receive_data(said(codec, Welcome("id", "da3c"), ACTIONS, sender=Sender.SERVER))
    assert isinstance(client.next_event(), Welcome)
    with pytest.raises(RemoteProtocolError, match="Actions from the server in state await_init"):
        client.send(INIT)
    assert client.send(Bye("x"))
