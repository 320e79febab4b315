"""Two ends of an RLX connection wired in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

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
    Message,
    ServerConnection,
    Space,
    Step,
    Welcome,
)
from relaax.rlx.connection import _Connection

from .rlx_messages import assert_same

OBSERVATION = Box(shape=(2,))
ACTION = Discrete(3)


def events(connection: _Connection) -> list[Event]:
    """All that can be had now; ConnectionClosed last."""
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
    """Leaves of a legal value for each environment, of equal elements (Discrete: from its start)."""
    return [
        np.full((environments, *e.shape), fill + (e.start if isinstance(e, Discrete) else 0), e.dtype)
        for e in space.elements()
    ]


class Pair:
    """A client and a server. What one says, the other must understand as the same.

    >>> pair = Pair(codec="json")
    >>> pair.open(environments=2)                   # hello, welcome
    >>> pair.client_says(Init([observation]))       # returns what the server understood
    """

    def __init__(self, codec: str = "protobuf", limits: Limits | None = None, **client: Any) -> None:
        self.client = ClientConnection(codec, **client)
        self.server = ServerConnection(limits)

    def client_says(self, message: Message) -> Any:
        return self._says(self.client, self.server, message)

    def server_says(self, message: Message) -> Any:
        return self._says(self.server, self.client, message)

    def _says(self, sender: _Connection, receiver: _Connection, message: Message) -> Any:
        receiver.receive_data(sender.send(message))
        understood = receiver.next_event()
        assert_same(understood, message)
        assert receiver.state is sender.state
        return understood

    def greet(self, hello: Hello | None = None, **fields: Any) -> Hello:
        """The hello alone; `fields` are those of `make_hello`."""
        understood: Hello = self.client_says(hello or make_hello(**fields))
        return understood

    def open(self, hello: Hello | None = None, limits: Limits | None = None, **fields: Any) -> Hello:
        """Hello and welcome."""
        understood = self.greet(hello, **fields)
        self.server_says(Welcome("session-1", "da3c", limits or self.server.limits))
        return understood

    def play(self, hello: Hello | None = None, **fields: Any) -> Hello:
        """Hello, welcome, init and actions: the client may step."""
        understood = self.open(hello, **fields)
        self.client_says(Init(batch(understood.observation_space, understood.environments)))
        self.act()
        return understood

    def act(self) -> None:
        hello = self.server.hello
        assert hello is not None
        self.server_says(Actions(batch(hello.action_space, hello.environments)))

    def step(self, **fields: Any) -> Step:
        """A step with its actions; `fields` are those of `Step`, masks as lists."""
        understood: Step = self.client_says(make_step(self.server.hello, **fields))
        self.act()
        return understood

    def returns(self, *values: float) -> None:
        self.server_says(EpisodeReturns(np.array(values, np.float64)))


def make_step(hello: Hello | None, **fields: Any) -> Step:
    """A legal step but for what `fields` say; masks may be lists."""
    assert hello is not None
    for name in ("terminated", "truncated", "first"):
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
