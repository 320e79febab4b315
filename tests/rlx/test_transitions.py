"""Every message in every state, on both sides and in both codecs, compared with the table of transitions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from relaax.rlx import (
    TRANSITIONS,
    Actions,
    Bye,
    ConnectionClosed,
    EpisodeReturns,
    Error,
    ErrorCode,
    Hello,
    Init,
    LocalProtocolError,
    Message,
    Metrics,
    Ping,
    Pong,
    RemoteProtocolError,
    Reset,
    Sender,
    State,
    Step,
    TrainingFinished,
    Welcome,
)
from relaax.rlx.wire.codecs import codec_named
from relaax.rlx.wire.framing import frame
from support.rlx_pair import Pair, batch, events, make_hello, make_step

HELLO = make_hello()
SAMPLES: dict[Sender, list[Message]] = {
    Sender.CLIENT: [
        HELLO,
        Init(batch(HELLO.observation_space, 1)),
        make_step(HELLO),
        Reset(np.zeros(1)),
        Metrics((("a", 1.0),)),
        Ping(7),
        Pong(7),
        Bye("x"),
    ],
    Sender.SERVER: [
        Welcome("id", "da3c"),
        Actions(batch(HELLO.action_space, 1)),
        EpisodeReturns(np.zeros(1)),
        Error(ErrorCode.OVERLOADED, "x"),
        TrainingFinished("x", 7),
        Ping(7),
        Pong(7),
        Bye("x"),
    ],
}
PATH = {
    State.AWAIT_HELLO: [],
    State.AWAIT_WELCOME: [Hello],
    State.AWAIT_INIT: [Hello, Welcome],
    State.AWAIT_ACTIONS: [Hello, Welcome, Init],
    State.AWAIT_STEP: [Hello, Welcome, Init, Actions],
    State.AWAIT_RETURNS: [Hello, Welcome, Init, Actions, Reset],
}
CASES = [
    pytest.param(state, sender, message, codec, id=f"{state.value}-{sender.value}-{type(message).__name__}-{codec}")
    for state, sender, codec in itertools.product(PATH, Sender, ("protobuf", "json"))
    for message in SAMPLES[sender]
]


def pair_in(state: State, codec: str) -> Pair:
    pair = Pair(codec)
    samples = {type(m): (role, m) for role in Sender for m in SAMPLES[role]}
    for kind in PATH[state]:
        role, message = samples[kind]
        (pair.client_sends if role is Sender.CLIENT else pair.server_sends)(message)
    assert pair.client.state is pair.server.state is state
    return pair


@pytest.mark.parametrize(("state", "sender", "message", "codec"), CASES)
def test_only_messages_in_the_table_are_accepted(state: State, sender: Sender, message: Message, codec: str) -> None:
    pair = pair_in(state, codec)
    sending, receiving = (pair.client, pair.server) if sender is Sender.CLIENT else (pair.server, pair.client)
    after = TRANSITIONS.get((state, sender, type(message)))
    if after is not None:
        # Before the hello, a server does not know the codec.
        if state is not State.AWAIT_HELLO or sender is Sender.CLIENT or codec == "protobuf":
            (pair.client_sends if sender is Sender.CLIENT else pair.server_sends)(message)
            assert sending.state is receiving.state is after
        return
    with pytest.raises(LocalProtocolError) as local:
        sending.send(message)
    assert local.value.code is ErrorCode.UNEXPECTED_MESSAGE
    assert sending.state is state
    payload = codec_named(codec).encode(message, sender)
    receiving.receive_data(frame(payload, 2**20))
    with pytest.raises(RemoteProtocolError) as remote:
        receiving.next_event()
    assert remote.value.code is ErrorCode.UNEXPECTED_MESSAGE
    assert receiving.state is State.ERROR


def test_every_message_and_state_is_in_the_table() -> None:
    for sender, samples in SAMPLES.items():
        assert {type(m) for m in samples} == {kind for _, role, kind in TRANSITIONS if role is sender}
    assert {state for state, _, _ in TRANSITIONS} | set(TRANSITIONS.values()) == set(State)
    assert State.CLOSED not in {state for state, _, _ in TRANSITIONS}


def test_last_messages_close_every_open_state() -> None:
    for state in PATH:
        assert TRANSITIONS[state, Sender.CLIENT, Bye] is State.CLOSED
        assert {TRANSITIONS[state, Sender.SERVER, kind] for kind in (Bye, Error, TrainingFinished)} == {State.CLOSED}


def test_pings_are_allowed_in_every_state_after_the_hello() -> None:
    for state, sender, kind in itertools.product(PATH, Sender, (Ping, Pong)):
        assert TRANSITIONS.get((state, sender, kind)) is (None if state is State.AWAIT_HELLO else state)


@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_only_error_may_be_sent_after_the_peers_mistake(codec: str) -> None:
    pair = pair_in(State.AWAIT_STEP, codec)
    pair.server.receive_data(frame(codec_named(codec).encode(HELLO, Sender.CLIENT), 2**20))
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="Hello from the client in state await_step") as caught:
            pair.server.next_event()
    pair.server.receive_data(b"ignored" * 1000)
    assert pair.server.buffered == 0
    for message in SAMPLES[Sender.SERVER]:
        if not isinstance(message, Error):
            with pytest.raises(LocalProtocolError):
                pair.server.send(message)
    pair.client.receive_data(pair.server.send(Error.of(caught.value)))
    assert events(pair.client) == [Error(ErrorCode.UNEXPECTED_MESSAGE, caught.value.message), ConnectionClosed()]
    assert pair.server.state is pair.client.state is State.CLOSED
    assert caught.value.code.retryable is False


def test_client_may_send_bye_after_the_servers_mistake() -> None:
    pair = pair_in(State.AWAIT_STEP, "protobuf")
    pair.client.receive_data(frame(b"\xff", 1))
    with pytest.raises(RemoteProtocolError):
        pair.client.next_event()
    with pytest.raises(LocalProtocolError):
        pair.client.send(make_step(HELLO))
    pair.server.receive_data(pair.client.send(Bye("what?")))
    assert events(pair.server) == [Bye("what?"), ConnectionClosed()]


def test_invalid_local_message_changes_no_state() -> None:
    pair = pair_in(State.AWAIT_STEP, "protobuf")
    bad = replace(make_step(HELLO), reward=np.array([np.nan]))
    with pytest.raises(LocalProtocolError, match="reward is nan"):
        pair.client.send(bad)
    with pytest.raises(LocalProtocolError, match="observation is None, not a list of leaves"):
        pair.client.send(Step(np.zeros(1), None))  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="Ping: "):
        pair.client.send(Ping("x"))  # type: ignore[arg-type]
    assert pair.client.state is State.AWAIT_STEP
    pair.step()


def test_end_of_stream_closes_the_connection() -> None:
    for state in PATH:
        pair = pair_in(state, "protobuf")
        pair.server.receive_data(b"\x00\x00")
        pair.server.receive_data(b"")
        assert events(pair.server) == [ConnectionClosed(orderly=False)]
        assert events(pair.server) == [ConnectionClosed(orderly=False)]
        assert pair.server.state is State.CLOSED
        with pytest.raises(LocalProtocolError):
            pair.server.send(Ping(1))


def test_messages_before_the_end_of_stream_are_received() -> None:
    pair = pair_in(State.AWAIT_STEP, "protobuf")
    pair.server.receive_data(pair.client.send(Ping(1)) + pair.client.send(Bye("x")))
    pair.server.receive_data(b"")
    assert events(pair.server) == [Ping(1), Bye("x"), ConnectionClosed(orderly=True)]
