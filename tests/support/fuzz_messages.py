"""Sequences of messages to mutate: the golden conversations, and random valid ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from google.protobuf import json_format

from relaax.rlx import (
    Autoreset,
    Box,
    Bye,
    Dict,
    Discrete,
    Episode,
    Hello,
    Init,
    Message,
    Metrics,
    Mode,
    MultiBinary,
    MultiDiscrete,
    Ping,
    Pong,
    Reset,
    Sender,
    Space,
    Step,
    Tuple,
    rlx_pb2,
)
from relaax.rlx.wire.encoding import Wire, to_wire
from support.rlx_pair import batch
from support.rlx_vectors import load

OBSERVATIONS: tuple[Space, ...] = (
    Box(shape=(2,)),
    Box(-1, 1, (4,)),
    Box(0, 255, (6, 6), np.uint8),
    Box(shape=(), dtype=np.float64),
    Box(shape=(3,), dtype=np.float16),
    Box(0, 1, (2,), np.bool_),
    Discrete(5, -2),
    MultiDiscrete([2, 3]),
    MultiBinary(3),
    Dict({"b": Discrete(3), "a": Tuple([Box(shape=(2,)), MultiBinary((2, 2))])}),
)
ACTIONS: tuple[Space, ...] = (
    Discrete(3),
    Discrete(4, 7),
    Box(-1, 1, (2,)),
    MultiDiscrete([3, 2]),
    Tuple([Discrete(2), Box(1, 2, (1,))]),
)
REWARDS = (0.0, 1.0, -1.0, 0.1, 1e15, -1e15, 5e-324, -0.0)


@dataclass(frozen=True)
class MessageSequence:
    """The messages of one side of a connection. A mistake in a golden conversation is the bytes of a frame."""

    codec: str
    messages: tuple[Wire | bytes, ...]
    name: str = ""  # of the golden conversation


@cache
def golden_sequences(sender: Sender) -> list[MessageSequence]:
    """Return the messages of `sender` in each golden conversation."""
    envelope = rlx_pb2.ClientMessage if sender is Sender.CLIENT else rlx_pb2.ServerMessage
    sequences = []
    for conversation in load():
        messages: list[Wire | bytes] = [
            json_format.ParseDict(e["message"], envelope()) if "message" in e else bytes.fromhex(e["bytes"])
            for e in conversation.entries
            if e["from"] == sender.value and "end_of_stream" not in e
        ]
        if messages:
            sequences.append(MessageSequence(conversation.codec, tuple(messages), conversation.name))
    return sequences


def random_sequence(rng: random.Random) -> MessageSequence:
    """Return a valid sequence of 4 to 600 messages of a client."""
    environments = rng.choice((1, 1, 2, 3))
    autoreset = [rng.choice(list(Autoreset)) for _ in range(rng.choice((1, environments)))]
    hello = Hello(
        rng.choice(OBSERVATIONS),
        rng.choice(ACTIONS),
        environments,
        autoreset,
        mode=rng.choice(list(Mode)),
        reports_episodes=rng.random() < 0.3,
        out_of_step=rng.random() < 0.5,
        chosen_actions=rng.random() < 0.5,
        environment_parameters=rng.random() < 0.3,
        environment="fuzz",
    )
    messages = [hello, *_episodes(rng, hello, rng.choice((3, 10, 40, 200, 600)))]
    return MessageSequence(
        rng.choice(("protobuf", "json")), tuple(to_wire(message, Sender.CLIENT) for message in messages)
    )


def _episodes(rng: random.Random, hello: Hello, count: int) -> Iterator[Message]:
    modes = np.broadcast_to(np.array(hello.autoreset), hello.environments)
    away = np.zeros(hello.environments, np.bool_)
    awaits_init = True
    for _ in range(count):
        chance = rng.random()
        if chance < 0.05:
            yield rng.choice((Ping(rng.getrandbits(32)), Pong(rng.getrandbits(32)), Metrics((("a/b", rng.random()),))))
        elif awaits_init:
            away = _idle(rng, hello)
            observation = _with_void_rows(rng, _observation(rng, hello), away)
            yield Init(observation, _mask(rng, hello) if chance < 0.3 else None, away)
            awaits_init = False
        elif chance < 0.12:
            truncated = _mask(rng, hello) & ~away
            final = _observation(rng, hello) if truncated.any() else None
            yield Reset(_rewards(rng, hello), truncated, final, (), *_own_actions(rng, hello, ~away))
            awaits_init = True
        else:
            message, away = _step(rng, hello, modes, away)
            yield message
    if rng.random() < 0.5:
        yield Bye("enough")


def _step(rng: random.Random, hello: Hello, modes: np.ndarray, away: np.ndarray) -> tuple[Step, np.ndarray]:
    """Return a step, and the environments that are between two episodes after it. `away`: those before it."""
    idle = _idle(rng, hello)
    may_end = (modes != Autoreset.DISABLED) & ~away & (rng.random() < 0.3)
    terminated, truncated = _mask(rng, hello) & may_end, _mask(rng, hello) & may_end
    ended = terminated | truncated
    replaced, shown = ended & (modes == Autoreset.SAME_STEP), ended & (modes == Autoreset.NEXT_STEP)
    episodes = []
    if hello.reports_episodes:
        episodes = [Episode(int(i), rng.choice(REWARDS), rng.randrange(1, 2**32)) for i in np.flatnonzero(ended)]
    step = Step(
        _rewards(rng, hello),
        _with_void_rows(rng, _observation(rng, hello), idle & ~shown),
        terminated,
        truncated,
        _with_void_rows(rng, _observation(rng, hello), ~replaced) if replaced.any() else None,
        away & ~idle,
        episodes,
        idle,
        *_own_actions(rng, hello, ~(away | (idle & ~ended))),
    )
    return step, (away | ended) & idle | shown


def _own_actions(rng: random.Random, hello: Hello, acted: np.ndarray) -> tuple[np.ndarray, list[np.ndarray] | None]:
    """Return a mask of some environments in `acted`, and actions with arbitrary bytes in the other rows."""
    chosen = _mask(rng, hello) & acted & (hello.chosen_actions and rng.random() < 0.3)
    if not chosen.any():
        return chosen, None
    return chosen, _with_void_rows(rng, batch(hello.action_space, hello.environments, 0), ~chosen)


def _idle(rng: random.Random, hello: Hello) -> np.ndarray:
    return _mask(rng, hello) & (hello.out_of_step and rng.random() < 0.6)


def _with_void_rows(rng: random.Random, leaves: list[np.ndarray], void: np.ndarray) -> list[np.ndarray]:
    """Return the leaves with arbitrary bytes where `void`, such as NaN."""
    for leaf in leaves:
        data = leaf.view(np.uint8).reshape(len(void), -1)
        data[void] = np.frombuffer(rng.choice((b"\xff" * 8, b"\0" * 8, rng.randbytes(8))), np.uint8)[
            np.arange(data.shape[1]) % 8
        ]
    return leaves


def _mask(rng: random.Random, hello: Hello) -> np.ndarray:
    return np.array([rng.random() < 0.5 for _ in range(hello.environments)], np.bool_)


def _rewards(rng: random.Random, hello: Hello) -> np.ndarray:
    return np.array([rng.choice(REWARDS) for _ in range(hello.environments)])


def _observation(rng: random.Random, hello: Hello) -> list[np.ndarray]:
    return batch(hello.observation_space, hello.environments, rng.randrange(2))
