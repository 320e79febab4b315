"""Any bytes give messages or RemoteProtocolError. Memory is bounded, and states follow the table of transitions."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relaax.rlx import (
    HANDSHAKE_FRAME_BYTES,
    NEED_DATA,
    TRANSITIONS,
    Actions,
    ClientConnection,
    ConnectionClosed,
    EpisodeReturns,
    Error,
    Hello,
    Init,
    Limits,
    LocalProtocolError,
    Message,
    RemoteProtocolError,
    Reset,
    Sender,
    ServerConnection,
    State,
    Step,
    Welcome,
    rlx_pb2,
)
from relaax.rlx.wire.codecs import codec_named
from relaax.rlx.wire.framing import frame
from support.rlx_messages import assert_same
from support.rlx_pair import batch, make_hello
from support.rlx_strategies import client_messages, hellos, server_messages
from support.rlx_vectors import load

LIMIT = 70_000
LIMITS = Limits(max_frame_bytes=LIMIT)
VOCABULARY = sorted(
    {word for c in load() for e in c.entries for word in json.dumps(e.get("message")).replace('"', " ").split()}
)


def serve(server: ServerConnection, chunks: list[bytes]) -> None:
    """Feed a server and answer its events; check its state and its buffer."""
    for chunk in chunks:
        try:
            server.receive_data(chunk)
            assert server.buffered <= 4 + LIMIT + len(chunk)
            while (event := server.next_event()) is not NEED_DATA:
                if isinstance(event, ConnectionClosed):
                    assert server.state is State.CLOSED
                    return
                answer(server, event)
        except RemoteProtocolError as error:
            assert server.state is State.ERROR
            assert server.buffered == 0
            assert 0 < len(error.message) <= 2000
            frame_ = server.send(Error.of(error))
            assert len(frame_) <= HANDSHAKE_FRAME_BYTES
            assert server.state is State.CLOSED
            return
        assert server.buffered < 4 + LIMIT
        assert server.state in {state for state, _, _ in TRANSITIONS}


def answer(server: ServerConnection, event: Any) -> None:
    hello = server.hello
    if isinstance(event, Hello):
        server.send(Welcome("id", "da3c", server.limits, out_of_step=event.out_of_step))
    elif hello is not None and isinstance(event, (Init, Step)):
        server.send(Actions(batch(hello.action_space, hello.environments)))
    elif hello is not None and isinstance(event, Reset):
        server.send(EpisodeReturns(np.zeros(hello.environments)))


def cut(data: bytes, draw: Any) -> list[bytes]:
    chunks = []
    while data:
        size = draw(st.one_of(st.integers(1, 8), st.just(len(data))))
        chunks.append(data[:size])
        data = data[size:]
    return chunks


@settings(deadline=None, max_examples=80)
@given(st.binary(max_size=300), st.data())
def test_server_survives_any_bytes(noise: bytes, data: st.DataObject) -> None:
    serve(ServerConnection(LIMITS), cut(noise, data.draw))


@settings(deadline=None, max_examples=80)
@given(st.lists(st.binary(min_size=1, max_size=100), max_size=4), st.booleans(), st.data())
def test_server_survives_any_frames(payloads: list[bytes], as_json: bool, data: st.DataObject) -> None:
    stream = b"".join(frame(b"{" * as_json + payload, LIMIT) for payload in payloads)
    serve(ServerConnection(LIMITS), cut(stream, data.draw))


STREAMS = [
    [bytes.fromhex(e["bytes"]) for e in c.entries if e["from"] == "client"]
    for c in load()
    if not any("error" in e for e in c.entries)
]


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(STREAMS), st.data())
def test_server_survives_damaged_conversations(frames: list[bytes], data: st.DataObject) -> None:
    """Bytes of a valid conversation are changed, added or removed, and frames are repeated. Lengths may be wrong."""
    frames = list(frames)
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(frames) - 1))
        victim = frames[index]
        start = data.draw(st.integers(4, max(4, len(victim) - 1)))
        end = min(len(victim), start + data.draw(st.integers(0, 4)))
        body = victim[4:start] + data.draw(st.binary(max_size=6)) + victim[end:]
        keep_length = data.draw(st.booleans())
        frames[index] = victim[:4] + body if keep_length or not body else frame(body, LIMIT)
        if data.draw(st.booleans()):
            frames.insert(data.draw(st.integers(0, len(frames))), frames[index])
    stream = b"".join(frames)
    serve(ServerConnection(LIMITS), [stream] if data.draw(st.booleans()) else cut(stream, data.draw))


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["NaN", "AAAA", "DTYPE_UINT8", "AUTORESET_DISABLED", "X"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([w.rstrip(":,") for w in VOCABULARY]), inner, max_size=4),
    ),
    max_leaves=12,
)
KINDS = ["hello", "init", "step", "reset", "metrics", "ping", "pong", "bye", "episodes", "?"]


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.sampled_from(KINDS), json_values, max_size=2), st.booleans())
def test_server_survives_any_json(tree: dict[str, Any], greeted: bool) -> None:
    chunks = [ClientConnection("json").send(make_hello())] if greeted else []
    serve(ServerConnection(LIMITS), [*chunks, frame(json.dumps(tree).encode(), LIMIT)])


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(["protobuf", "json"]), st.binary(min_size=1, max_size=200), st.booleans(), st.booleans())
def test_client_survives_any_bytes(codec: str, noise: bytes, framed: bool, welcomed: bool) -> None:
    client = ClientConnection(codec, max_frame_bytes=LIMIT)
    client.send(make_hello())
    if welcomed:
        client.receive_data(frame(codec_named(codec).encode(Welcome("id", "da3c"), Sender.SERVER), LIMIT))
        assert isinstance(client.next_event(), Welcome)
    client.receive_data(frame(noise, LIMIT) if framed else noise)
    try:
        while client.next_event() is not NEED_DATA and client.state is not State.CLOSED:
            pass
    except RemoteProtocolError:
        assert client.state is State.ERROR
    assert client.buffered <= 4 + LIMIT


@pytest.mark.parametrize("welcomed", [False, True])
def test_announced_frame_reserves_no_memory(welcomed: bool) -> None:
    server = ServerConnection(Limits(max_frame_bytes=2**30))
    limit = HANDSHAKE_FRAME_BYTES
    if welcomed:
        server.receive_data(ClientConnection().send(make_hello()))
        server.next_event()
        server.send(Welcome("id", "da3c", Limits(max_frame_bytes=2**30)))
        limit = 2**30
    tracemalloc.start()
    try:
        server.receive_data(limit.to_bytes(4, "big") + bytes(1000))
        assert server.next_event() is NEED_DATA
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("part", ["spaces", "autoreset"])
def test_long_lists_of_empty_items_are_refused_without_memory(part: str) -> None:
    envelope = rlx_pb2.ClientMessage.FromString(codec_named("protobuf").encode(make_hello(), Sender.CLIENT))
    if part == "spaces":
        envelope.hello.observation_space.Clear()
        envelope.hello.observation_space.tuple.spaces.extend([rlx_pb2.Space()] * 32_000)
    else:
        envelope.hello.autoreset.extend([rlx_pb2.AUTORESET_DISABLED] * 65_000)
    server = ServerConnection()
    server.receive_data(frame(envelope.SerializeToString(), HANDSHAKE_FRAME_BYTES))
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=r"more than 256 leaves|65001 entries; 1 environments"):
            server.next_event()
        assert tracemalloc.get_traced_memory()[1] < 20 * HANDSHAKE_FRAME_BYTES
    finally:
        tracemalloc.stop()


class Wire(RuleBasedStateMachine):
    """Random messages between both ends: the receiver accepts each message sent, and both ends have the same state."""

    @initialize(hello=hellos(), codec=st.sampled_from(["protobuf", "json"]))
    def greet(self, hello: Hello, codec: str) -> None:
        self.client, self.server = ClientConnection(codec), ServerConnection()
        self.hello = hello
        self.server.receive_data(self.client.send(hello))
        assert_same(self.server.next_event(), hello)
        admitted = Welcome("id", "da3c", self.server.limits, out_of_step=hello.out_of_step)
        self.transfer(self.server, self.client, admitted)

    def transfer(self, sender: Any, receiver: Any, message: Message) -> None:
        before = sender.state
        role = Sender.CLIENT if sender is self.client else Sender.SERVER
        try:
            data = sender.send(message)
        except LocalProtocolError:
            assert sender.state is before
            return
        assert TRANSITIONS[before, role, type(message)] is sender.state
        receiver.receive_data(data)
        assert_same(receiver.next_event(), message)

    @rule(data=st.data())
    def client_sends_any_message(self, data: st.DataObject) -> None:
        self.transfer(self.client, self.server, data.draw(client_messages(self.hello)))

    @rule(data=st.data())
    def server_sends_any_message(self, data: st.DataObject) -> None:
        self.transfer(self.server, self.client, data.draw(server_messages(self.hello)))

    @precondition(lambda self: self.client.state in (State.AWAIT_INIT, State.AWAIT_STEP))
    @rule(data=st.data())
    def client_sends_init_or_step(self, data: st.DataObject) -> None:
        kind = Init if self.client.state is State.AWAIT_INIT else Step
        message = data.draw(client_messages(self.hello).filter(lambda m: isinstance(m, kind)))
        self.transfer(self.client, self.server, message)

    @precondition(lambda self: self.client.state is State.AWAIT_ACTIONS)
    @rule(data=st.data())
    def server_sends_actions(self, data: st.DataObject) -> None:
        actions = data.draw(server_messages(self.hello).filter(lambda m: isinstance(m, Actions)))
        self.transfer(self.server, self.client, actions)

    @invariant()
    def states_are_equal(self) -> None:
        if hasattr(self, "client"):
            assert self.client.state is self.server.state
            assert self.client.buffered == self.server.buffered == 0
            assert_same(self.client.between_episodes, self.server.between_episodes)


TestWire = Wire.TestCase
TestWire.settings = settings(deadline=None, max_examples=15, stateful_step_count=15)
