"""Early messages: if a message arrives before an answer is sent, it is checked in the state before that answer."""

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


def frames_of(codec: str, *messages: Message, sender: Sender = Sender.CLIENT) -> bytes:
    return b"".join(frame(codec_named(codec).encode(message, sender), 2**20) for message in messages)


def expect_unexpected(server: ServerConnection, answer: Message) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        server.send(answer)
    assert caught.value.code is ErrorCode.UNEXPECTED_MESSAGE
    assert server.state is State.ERROR
    assert server.send(Error.of(caught.value))


@CODECS
def test_messages_after_the_hello_in_one_packet_are_refused(codec: str) -> None:
    server = ServerConnection()
    server.receive_data(frames_of(codec, HELLO, INIT, STEP))
    assert_same(server.next_event(), HELLO)
    expect_unexpected(server, Welcome("id", "da3c"))


@CODECS
@pytest.mark.parametrize("early", [STEP, INIT, Reset(np.zeros(1)), HELLO], ids=lambda message: type(message).__name__)
def test_message_sent_before_the_answer_is_refused(codec: str, early: Message) -> None:
    """The early message is in the same packet or a later one. The server reads it before it answers, or does not."""
    for together in (True, False):
        for read in (True, False):
            pair = Pair(codec)
            pair.play()
            pair.server.receive_data(frames_of(codec, STEP, early) if together else frames_of(codec, STEP))
            assert_same(pair.server.next_event(), STEP)
            if not together:
                pair.server.receive_data(frames_of(codec, early))
            if read:
                with pytest.raises(RemoteProtocolError) as caught:
                    pair.server.next_event()
                assert caught.value.code is ErrorCode.UNEXPECTED_MESSAGE
            else:
                expect_unexpected(pair.server, ACTIONS)


@CODECS
def test_init_sent_before_episode_returns_is_refused(codec: str) -> None:
    pair = Pair(codec)
    pair.play()
    pair.server.receive_data(frames_of(codec, Reset(np.zeros(1)), INIT))
    assert isinstance(pair.server.next_event(), Reset)
    expect_unexpected(pair.server, EpisodeReturns(np.zeros(1)))


@CODECS
def test_pings_and_metrics_before_the_answer_are_received(codec: str) -> None:
    between: list[Message] = [Ping(1), Metrics((("a", 1.0),)), Pong(2), Ping(3)]
    for read in range(len(between) + 1):
        pair = Pair(codec)
        pair.play()
        pair.server.receive_data(frames_of(codec, STEP, *between))
        assert_same(pair.server.next_event(), STEP)
        assert [pair.server.next_event() for _ in range(read)] == between[:read]
        pair.server.send(Pong(1))
        pair.server.send(ACTIONS)
        assert events(pair.server) == between[read:]
        pair.server.receive_data(frames_of(codec, STEP))
        assert_same(pair.server.next_event(), STEP)


@CODECS
def test_messages_after_bye_are_ignored(codec: str) -> None:
    pair = Pair(codec)
    pair.play()
    pair.server.receive_data(frames_of(codec, STEP, Ping(1), Bye("x"), STEP))
    assert_same(pair.server.next_event(), STEP)
    assert pair.server.send(ACTIONS)
    assert events(pair.server) == [Ping(1), Bye("x"), ConnectionClosed()]


@CODECS
def test_frame_completed_after_the_answer_is_accepted(codec: str) -> None:
    pair = Pair(codec)
    pair.play()
    early = frames_of(codec, STEP)
    pair.server.receive_data(frames_of(codec, STEP) + early[:-1])
    assert_same(pair.server.next_event(), STEP)
    assert pair.server.next_event() is NEED_DATA
    assert pair.server.send(ACTIONS)
    pair.server.receive_data(early[-1:])
    assert_same(pair.server.next_event(), STEP)


@pytest.mark.parametrize("bad", [b"\0\0\0\0", b"\x7f\xff\xff\xff", frame(b"\xff", 9), frame(b"\x32\x00\x3a\x00", 9)])
def test_malformed_frame_is_reported_before_the_answer(bad: bytes) -> None:
    pair = Pair()
    pair.play()
    pair.server.receive_data(frames_of("protobuf", STEP, Ping(1)) + bad)
    assert_same(pair.server.next_event(), STEP)
    with pytest.raises(RemoteProtocolError) as caught:
        pair.server.send(ACTIONS)
    assert caught.value.code in (ErrorCode.MALFORMED, ErrorCode.FRAME_TOO_LARGE)


@CODECS
def test_client_refuses_actions_received_before_its_init(codec: str) -> None:
    client = ClientConnection(codec)
    client.send(HELLO)
    client.receive_data(frames_of(codec, Welcome("id", "da3c"), ACTIONS, sender=Sender.SERVER))
    assert isinstance(client.next_event(), Welcome)
    with pytest.raises(RemoteProtocolError, match="Actions from the server in state await_init"):
        client.send(INIT)
    assert client.send(Bye("x"))
