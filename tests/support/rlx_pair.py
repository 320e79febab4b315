"""Two ends of an RLX connection wired in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaax.rlx import (
    NEED_DATA,
    Actions,
    Autoreset,
    Box,
    ClientConnection,
    ConnectionClosed,
    Discrete,
    EpisodeReturns,
    Event,
    Hello,
    Init,
    Limits,
    LocalProtocolError,
    Message,
    RemoteProtocolError,
    Sender,
    ServerConnection,
    Space,
    Step,
    Welcome,
)
from relaax.rlx.connection import _Connection
from relaax.rlx.wire.codecs import codec_named
from relaax.rlx.wire.encoding import CAPABILITIES
from relaax.rlx.wire.framing import frame

from .rlx_messages import assert_same

OBSERVATION = Box(shape=(2,))
ACTION = Discrete(3)


def events(connection: _Connection) -> list[Event]:
    """Return the events until NEED_DATA or ConnectionClosed."""
    found: list[Event] = []
    while (event := connection.next_event()) is not NEED_DATA:
        found.append(event)
        if isinstance(event, ConnectionClosed):
            break
    return found


def make_hello(
    observation_space: Space = OBSERVATION, action_space: Space = ACTION, environments: int = 1, **fields: Any
) -> Hello:
    return Hello(observation_space, action_space, environments, **fields)


def batch(space: Space, environments: int, fill: int = 0) -> list[np.ndarray]:
    """Return leaves of a legal value for each environment. Every element is `fill` (Discrete: start + `fill`)."""
    return [
        np.full((environments, *e.shape), fill + (e.start if isinstance(e, Discrete) else 0), e.dtype)
        for e in space.elements()
    ]


class Pair:
    """A client and a server. Each must receive the message that the other sends.

    >>> pair = Pair(codec="json")
    >>> pair.open(environments=2)                   # hello, welcome
    >>> pair.client_sends(Init([observation]))       # returns the message that the server received
    """

    def __init__(self, codec: str = "protobuf", limits: Limits | None = None, **client: Any) -> None:
        self.client = ClientConnection(codec, **client)
        self.server = ServerConnection(limits)

    def client_sends(self, message: Message) -> Any:
        return self._transfer(self.client, self.server, message)

    def server_sends(self, message: Message) -> Any:
        return self._transfer(self.server, self.client, message)

    def _transfer(self, sender: _Connection, receiver: _Connection, message: Message) -> Any:
        receiver.receive_data(sender.send(message))
        received = receiver.next_event()
        assert_same(received, message)
        assert receiver.state is sender.state
        return received

    def greet(self, hello: Hello | None = None, **fields: Any) -> Hello:
        """Send only the hello. `fields`: arguments of `make_hello`."""
        received: Hello = self.client_sends(hello or make_hello(**fields))
        return received

    def open(self, hello: Hello | None = None, limits: Limits | None = None, **fields: Any) -> Hello:
        """Send the hello and the welcome."""
        received = self.greet(hello, **fields)
        limits = limits or self.server.limits
        capabilities = {name: getattr(received, name) for name in CAPABILITIES}
        self.server_sends(Welcome("session-1", "da3c", limits, **capabilities))
        return received

    def play(self, hello: Hello | None = None, **fields: Any) -> Hello:
        """Send hello, welcome, init and actions, so that the client may step."""
        received = self.open(hello, **fields)
        self.client_sends(Init(batch(received.observation_space, received.environments)))
        self.act()
        return received

    def act(self) -> None:
        hello = self.server.hello
        assert hello is not None
        self.server_sends(Actions(batch(hello.action_space, hello.environments)))

    def step(self, **fields: Any) -> Step:
        """Send a step and its actions. `fields`: fields of `Step`; masks may be lists."""
        received: Step = self.client_sends(make_step(self.server.hello, **fields))
        self.act()
        return received

    def returns(self, *values: float) -> None:
        self.server_sends(EpisodeReturns(np.array(values, np.float64)))


def make_step(hello: Hello | None, **fields: Any) -> Step:
    """Return a legal step with these `fields`; masks may be lists."""
    assert hello is not None
    for name in ("terminated", "truncated", "first", "idle"):
        if fields.get(name) is not None:
            fields[name] = np.array(fields[name], np.bool_)
    fields.setdefault("reward", np.ones(hello.environments))
    fields.setdefault("observation", batch(hello.observation_space, hello.environments))
    return Step(**fields)


AUTORESETS = {
    "disabled": (Autoreset.DISABLED,),
    "same_step": (Autoreset.SAME_STEP,),
    "next_step": (Autoreset.NEXT_STEP,),
}


def assert_refused(pair: Pair, message: Any, sentence: str) -> None:
    """Assert that the client does not send the message and that the server refuses it with the same error."""
    with pytest.raises(LocalProtocolError) as local:
        pair.client.send(message)
    pair.server.receive_data(frame(codec_named("protobuf").encode(message, Sender.CLIENT), 2**20))
    with pytest.raises(RemoteProtocolError) as remote:
        pair.server.next_event()
    assert sentence in local.value.message
    assert remote.value.message == local.value.message
    assert remote.value.code is local.value.code


def playing_pair(autoreset: str, environments: int = 2, **fields: Any) -> Pair:
    pair = Pair()
    pair.play(environments=environments, autoreset=AUTORESETS[autoreset], **fields)
    return pair
