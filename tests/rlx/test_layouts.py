"""The short way of steps and actions, against Protobuf's own: the same bytes, the same messages, the same refusals."""

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
    """The payload, whose length is as told."""
    found = layout.write(message)
    assert found is not None
    pieces, length = found
    payload = b"".join(pieces)
    assert len(payload) == length
    return payload


def agreed(hello: Hello) -> ProtobufCodec:
    codec = ProtobufCodec()
    codec.configure(hello)
    return codec


def outcome(codec: ProtobufCodec, payload: bytes, sender: Sender) -> Any:
    """The message, or what is wrong with it."""
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
def test_both_ways_write_the_same_bytes_and_read_the_same_messages(case: tuple[Hello, tuple[Sender, Message]]) -> None:
    hello, (sender, message) = case
    codec = agreed(hello)
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
    "all": {"terminated": [1, 0, 0], "truncated": [0, 1, 0], "final_observation": 3, "first": [0, 0, 1]},
}


def step_of(hello: Hello, fields: dict[str, Any]) -> Step:
    fields = dict(fields)
    if "final_observation" in fields:
        fields["final_observation"] = batch(hello.observation_space, N, fields["final_observation"])
    return make_step(hello, reward=np.array([0.5, -1.0, 2e300]), **fields)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_goes_the_short_way(hello: Hello, name: str) -> None:
    layout, step = StepLayout(hello), step_of(hello, STEPS[name])
    payload = written(layout, step)
    assert payload == GENERAL.encode(step, Sender.CLIENT)
    understood = layout.read(payload)
    assert_same(understood, step)
    assert understood is not None
    assert all(leaf.flags.aligned for leaf in understood.observation)
    assert understood.reward.flags.aligned


def test_actions_go_the_short_way() -> None:
    hello = make_hello(action_space=Discrete(5, start=-2), environments=N)
    layout, actions = ActionsLayout(hello), Actions([np.array([-2, 0, 2])])
    payload = written(layout, actions)
    assert payload == GENERAL.encode(actions, Sender.SERVER)
    understood = layout.read(payload)
    assert_same(understood, actions)
    assert understood is not None
    assert understood.action[0].flags.aligned


@pytest.mark.parametrize("order", ["F", "reversed", "every second"])
def test_arrays_whose_elements_are_scattered(order: str) -> None:
    hello = make_hello(Box(shape=(4, 2)), environments=N)
    values = np.arange(N * 8, dtype=np.float32).reshape(N, 4, 2)
    scattered = {
        "F": np.asfortranarray(values),
        "reversed": values[:, ::-1].copy()[:, ::-1],
        "every second": np.repeat(values, 2, axis=1)[:, ::2],
    }[order]
    assert not scattered.flags.c_contiguous
    step = Step(np.arange(2.0 * N)[::2], [scattered], np.tile([True, False], N)[::2])
    payload = agreed(hello).encode(step, Sender.CLIENT)
    assert payload == GENERAL.encode(step, Sender.CLIENT)
    assert_same(agreed(hello).decode(payload, Sender.CLIENT), Step(step.reward, [values], step.terminated))


def test_episodes_go_the_general_way(hello: Hello) -> None:
    step = make_step(hello, episodes=(Episode(1, 2.0, 3),))
    assert StepLayout(hello).write(step) is None
    payload = agreed(hello).encode(step, Sender.CLIENT)
    assert StepLayout(hello).read(payload) is None
    assert_same(agreed(hello).decode(payload, Sender.CLIENT), step)


@pytest.mark.parametrize("number", [2, 127])
def test_any_number_is_true_in_protobuf(hello: Hello, number: int) -> None:
    codec = agreed(hello)
    payload = codec.encode(make_step(hello, terminated=[True, False, False]), Sender.CLIENT)
    assert payload[-3:] == b"\1\0\0"
    odd = payload[:-3] + bytes([number, 0, 1])
    understood = codec.decode(odd, Sender.CLIENT)
    assert isinstance(understood, Step)
    assert understood.terminated is not None
    assert understood.terminated.tolist() == [True, False, True]


def test_another_writer_may_put_the_same_in_other_words(hello: Hello) -> None:
    """Fields in another order, numbers not packed, a field nobody knows: all legal, and read the general way."""
    codec, step = agreed(hello), make_step(hello)
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
        told = b"\x1a" + bytes([size & 0x7F | 0x80, size >> 7]) + inner
        assert_same(codec.decode(told, Sender.CLIENT), step)
        if size < 2**7 << 7:  # a length may be written with more bytes than it needs
            longer = b"\x1a" + bytes([size & 0x7F | 0x80, size >> 7 | 0x80, 0]) + inner
            assert_same(codec.decode(longer, Sender.CLIENT), step)


@settings(deadline=None, max_examples=25)
@given(conversations, st.data())
def test_damage_is_read_the_same_both_ways(case: tuple[Hello, tuple[Sender, Message]], data: st.DataObject) -> None:
    hello, (sender, message) = case
    damaged = bytearray(GENERAL.encode(message, sender))
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(damaged)))
        cut = data.draw(st.integers(0, 3))
        damaged[at : at + cut] = data.draw(st.binary(max_size=4))
    expected = outcome(GENERAL, bytes(damaged), sender)
    assert_same(outcome(agreed(hello), bytes(damaged), sender), expected)


@pytest.mark.parametrize("name", STEPS)
def test_each_changed_byte_is_read_the_same_both_ways(hello: Hello, name: str) -> None:
    codec = agreed(hello)
    payload = codec.encode(step_of(hello, STEPS[name]), Sender.CLIENT)
    for at in range(len(payload)):
        for byte in (0, 1, 2, 0x7F, 0x80, 0xFF):
            odd = payload[:at] + bytes([byte]) + payload[at + 1 :]
            assert_same(outcome(codec, odd, Sender.CLIENT), outcome(GENERAL, odd, Sender.CLIENT))
    for length in range(len(payload)):
        short = payload[:length]
        assert_same(outcome(codec, short, Sender.CLIENT), outcome(GENERAL, short, Sender.CLIENT))


@pytest.mark.parametrize("environments", [1, 16, 127, 128, 300, 3000])
def test_lengths_of_any_number_of_bytes(environments: int) -> None:
    hello = make_hello(Box(0, 255, (5,), np.uint8), environments=environments)
    layout = StepLayout(hello)
    some = np.arange(environments) % 2 == 0
    for fields in ({}, {"terminated": some}, {"first": some, "terminated": some}):
        step = make_step(hello, **fields)
        payload = written(layout, step)
        assert payload == GENERAL.encode(step, Sender.CLIENT)
        assert_same(layout.read(payload), step)


def test_big_endian_machines_go_the_general_way(monkeypatch: pytest.MonkeyPatch, hello: Hello) -> None:
    monkeypatch.setattr("sys.byteorder", "big")
    codec = agreed(hello)
    assert codec._steps is None
    assert codec._actions is None


@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_arrays_that_lie_otherwise_in_memory_are_sent_in_c_order(codec: str) -> None:
    """Small and large ones: those of Fortran's order, every second column of another, and turned around."""
    for side in (3, 40):
        whole = np.arange(2.0 * side * side, dtype=np.float32).reshape(1, side, 2 * side)
        right = np.ascontiguousarray(whole[:, :, ::2])
        for leaf in (np.asfortranarray(right), whole[:, :, ::2], np.ascontiguousarray(right[:, ::-1])[:, ::-1]):
            pair = Pair(codec)
            hello = pair.play(observation_space=Box(shape=(side, side)))
            assert np.array_equal(pair.step(observation=[leaf]).observation[0], right)
            assert hello.environments == 1
