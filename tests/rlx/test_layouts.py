"""Layouts of steps and actions compared with the general codec: same bytes, same messages, same errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax.rlx import Actions, Box, Dict, Discrete, Episode, Hello, Message, ProtocolError, Sender, Step, rlx_pb2
from relaax.rlx.wire.codecs import ProtobufCodec
from relaax.rlx.wire.layouts import ActionsLayout, StepLayout
from support.rlx_messages import assert_same
from support.rlx_pair import Pair, batch, make_hello, make_step
from support.rlx_strategies import client_messages, hellos, server_messages

GENERAL = ProtobufCodec()
N = 3


def written(layout: StepLayout | ActionsLayout, message: Any) -> bytes:
    """Return the payload; assert that the layout returns its length."""
    found = layout.write(message)
    assert found is not None
    pieces, length = found
    payload = b"".join(pieces)
    assert len(payload) == length
    return payload


def codec_for(hello: Hello) -> ProtobufCodec:
    codec = ProtobufCodec()
    codec.configure(hello)
    return codec


def outcome(codec: ProtobufCodec, payload: bytes, sender: Sender) -> Any:
    """Return the message, or the code and the text of the error."""
    try:
        return codec.decode(payload, sender)
    except ProtocolError as error:
        return error.code, error.message


conversations = hellos().flatmap(
    lambda hello: st.tuples(
        st.just(hello),
        st.one_of(
            client_messages(hello).map(lambda m: (Sender.CLIENT, m)),
            server_messages(hello).map(lambda m: (Sender.SERVER, m)),
        ),
    )
)


@settings(deadline=None, max_examples=40)
@given(conversations)
def test_layout_and_general_codec_agree(case: tuple[Hello, tuple[Sender, Message]]) -> None:
    hello, (sender, message) = case
    codec = codec_for(hello)
    payload = codec.encode(message, sender)
    assert payload == GENERAL.encode(message, sender)
    assert_same(codec.decode(payload, sender), message)


def wire(**fields: Any) -> bytes:
    return rlx_pb2.ClientMessage(step=rlx_pb2.Step(**fields)).SerializeToString()


@pytest.fixture
def hello() -> Hello:
    parts = {"camera": Box(0, 255, (2, 3), np.uint8), "speed": Box(shape=(2,))}
    return make_hello(Dict(parts), environments=N, reports_episodes=True)


STEPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "terminated": {"terminated": [True, False, True]},
    "truncated": {"truncated": [False, True, False], "final_observation": 7},
    "first": {"first": [True, False, False]},
    "idle": {"idle": [False, True, True]},
    "comes and idle": {"first": [True, False, False], "idle": [False, True, False]},
    "all": {
        "terminated": [1, 0, 0],
        "truncated": [0, 1, 0],
        "final_observation": 3,
        "first": [0, 0, 1],
        "idle": [1, 1, 0],
    },
}


def step_of(hello: Hello, fields: dict[str, Any]) -> Step:
    fields = dict(fields)
    if "final_observation" in fields:
        fields["final_observation"] = batch(hello.observation_space, N, fields["final_observation"])
    return make_step(hello, reward=np.array([0.5, -1.0, 2e300]), **fields)


@pytest.mark.parametrize("name", STEPS)
def test_layout_writes_and_reads_a_step(hello: Hello, name: str) -> None:
    layout, step = StepLayout(hello), step_of(hello, STEPS[name])
    payload = written(layout, step)
    assert payload == GENERAL.encode(step, Sender.CLIENT)
    received = layout.read(payload)
    assert_same(received, step)
    assert received is not None
    assert all(leaf.flags.aligned for leaf in received.observation)
    assert received.reward.flags.aligned


def test_layout_writes_and_reads_actions() -> None:
    hello = make_hello(action_space=Discrete(5, start=-2), environments=N)
    layout, actions = ActionsLayout(hello), Actions([np.array([-2, 0, 2])])
    payload = written(layout, actions)
    assert payload == GENERAL.encode(actions, Sender.SERVER)
    received = layout.read(payload)
    assert_same(received, actions)
    assert received is not None
    assert received.action[0].flags.aligned


@pytest.mark.parametrize("order", ["F", "reversed", "every second"])
def test_non_contiguous_arrays_are_written_in_c_order(order: str) -> None:
    hello = make_hello(Box(shape=(4, 2)), environments=N)
    values = np.arange(N * 8, dtype=np.float32).reshape(N, 4, 2)
    scattered = {
        "F": np.asfortranarray(values),
        "reversed": values[:, ::-1].copy()[:, ::-1],
        "every second": np.repeat(values, 2, axis=1)[:, ::2],
    }[order]
    assert not scattered.flags.c_contiguous
    step = Step(np.arange(2.0 * N)[::2], [scattered], np.tile([True, False], N)[::2])
    payload = codec_for(hello).encode(step, Sender.CLIENT)
    assert payload == GENERAL.encode(step, Sender.CLIENT)
    assert_same(codec_for(hello).decode(payload, Sender.CLIENT), Step(step.reward, [values], step.terminated))


def test_step_with_episodes_uses_the_general_codec(hello: Hello) -> None:
    step = make_step(hello, episodes=(Episode(1, 2.0, 3),))
    assert StepLayout(hello).write(step) is None
    payload = codec_for(hello).encode(step, Sender.CLIENT)
    assert StepLayout(hello).read(payload) is None
    assert_same(codec_for(hello).decode(payload, Sender.CLIENT), step)


@pytest.mark.parametrize("number", [2, 127])
def test_other_nonzero_bytes_are_read_as_true(hello: Hello, number: int) -> None:
    codec = codec_for(hello)
    payload = codec.encode(make_step(hello, terminated=[True, False, False]), Sender.CLIENT)
    assert payload[-3:] == b"\1\0\0"
    odd = payload[:-3] + bytes([number, 0, 1])
    received = codec.decode(odd, Sender.CLIENT)
    assert isinstance(received, Step)
    assert received.terminated is not None
    assert received.terminated.tolist() == [True, False, True]


def test_other_encodings_of_a_step_are_read(hello: Hello) -> None:
    """Fields in another order, unpacked numbers and unknown fields are legal. The general codec reads them."""
    codec, step = codec_for(hello), make_step(hello)
    payload = codec.encode(step, Sender.CLIENT)
    general = rlx_pb2.ClientMessage.FromString(payload).step
    rewards = general.reward[:]
    general.ClearField("reward")
    unpacked = b"".join(b"\x09" + np.float64(reward).tobytes() for reward in rewards)
    for inner in (
        general.SerializeToString() + unpacked,
        unpacked + general.SerializeToString(),
        rlx_pb2.ClientMessage.FromString(payload).step.SerializeToString() + b"\x98\x06\x01",
    ):
        size = len(inner)
        framed_step = b"\x1a" + bytes([size & 0x7F | 0x80, size >> 7]) + inner
        assert_same(codec.decode(framed_step, Sender.CLIENT), step)
        if size < 2**7 << 7:  # a length may be written with more bytes than it needs
            longer = b"\x1a" + bytes([size & 0x7F | 0x80, size >> 7 | 0x80, 0]) + inner
            assert_same(codec.decode(longer, Sender.CLIENT), step)


@settings(deadline=None, max_examples=25)
@given(conversations, st.data())
def test_damaged_payload_has_same_outcome_as_general_codec(
    case: tuple[Hello, tuple[Sender, Message]], data: st.DataObject
) -> None:
    hello, (sender, message) = case
    damaged = bytearray(GENERAL.encode(message, sender))
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(damaged)))
        cut = data.draw(st.integers(0, 3))
        damaged[at : at + cut] = data.draw(st.binary(max_size=4))
    expected = outcome(GENERAL, bytes(damaged), sender)
    assert_same(outcome(codec_for(hello), bytes(damaged), sender), expected)


@pytest.mark.parametrize("name", STEPS)
def test_changed_byte_has_same_outcome_as_general_codec(hello: Hello, name: str) -> None:
    codec = codec_for(hello)
    payload = codec.encode(step_of(hello, STEPS[name]), Sender.CLIENT)
    for at in range(len(payload)):
        for byte in (0, 1, 2, 0x7F, 0x80, 0xFF):
            odd = payload[:at] + bytes([byte]) + payload[at + 1 :]
            assert_same(outcome(codec, odd, Sender.CLIENT), outcome(GENERAL, odd, Sender.CLIENT))
    for length in range(len(payload)):
        short = payload[:length]
        assert_same(outcome(codec, short, Sender.CLIENT), outcome(GENERAL, short, Sender.CLIENT))


@pytest.mark.parametrize("environments", [1, 16, 127, 128, 300, 3000])
def test_messages_of_any_length_are_written_and_read(environments: int) -> None:
    hello = make_hello(Box(0, 255, (5,), np.uint8), environments=environments)
    layout = StepLayout(hello)
    some = np.arange(environments) % 2 == 0
    for fields in ({}, {"terminated": some}, {"first": some, "terminated": some}, {"idle": some}):
        step = make_step(hello, **fields)
        payload = written(layout, step)
        assert payload == GENERAL.encode(step, Sender.CLIENT)
        assert_same(layout.read(payload), step)


def test_big_endian_machine_uses_the_general_codec(monkeypatch: pytest.MonkeyPatch, hello: Hello) -> None:
    monkeypatch.setattr("sys.byteorder", "big")
    codec = codec_for(hello)
    assert codec._steps is None
    assert codec._actions is None


@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_arrays_in_other_memory_order_are_sent_in_c_order(codec: str) -> None:
    """The arrays are in Fortran order, or hold every second column of another array, or are reversed."""
    for side in (3, 40):
        whole = np.arange(2.0 * side * side, dtype=np.float32).reshape(1, side, 2 * side)
        right = np.ascontiguousarray(whole[:, :, ::2])
        for leaf in (np.asfortranarray(right), whole[:, :, ::2], np.ascontiguousarray(right[:, ::-1])[:, ::-1]):
            pair = Pair(codec)
            hello = pair.play(observation_space=Box(shape=(side, side)))
            assert np.array_equal(pair.step(observation=[leaf]).observation[0], right)
            assert hello.environments == 1
