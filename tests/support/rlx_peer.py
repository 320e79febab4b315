"""An RLX server that does what a test tells it: real sockets, the protocol's own checks, one thread per connection.

    def script(talk: Conversation) -> None:
        talk.welcome()
        talk.answer()               # init -> actions
        talk.kill()

    with RlxPeer(script, serve) as peer:      # the first connection is scripted, every later one served to its end
        Client(peer.address, ...)

What a client sends is checked by `relaax.rlx.ServerConnection`; a breach of the protocol fails the test when the peer
is closed, and so does any other error of a script.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import numpy as np

from relaax import rlx
from support.acceptor import PATIENCE, Acceptor

Script = Callable[["Conversation"], None]
Policy = Callable[[rlx.Message, "Conversation"], rlx.Leaves]


class Gone(Exception):
    """The client has left."""


class Conversation:
    """One connection, from the server's side."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(PATIENCE)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected
        self.connection = rlx.ServerConnection()
        self.heard: list[rlx.Message] = []
        self.policy: Policy = least_action

    @property
    def hello(self) -> rlx.Hello:
        assert self.connection.hello is not None, "the client has not introduced itself"
        return self.connection.hello

    def of(self, *kinds: type[Any]) -> list[Any]:
        """The messages of these kinds that were heard."""
        return [message for message in self.heard if isinstance(message, kinds)]

    def hear(self) -> rlx.Message:
        """The client's next message, whatever it is. Raises Gone if it left."""
        while (event := self.connection.next_event()) is rlx.NEED_DATA:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError as error:
                raise Gone from error
            self.connection.receive_data(data)
        if isinstance(event, rlx.ConnectionClosed):
            raise Gone
        self.heard.append(event)
        if isinstance(event, rlx.Bye):
            raise Gone
        return event

    def expect(self, kind: type[Any]) -> Any:
        """The client's next message that is no metric, ping or pong; it must be of this kind."""
        while isinstance(message := self.hear(), rlx.Metrics | rlx.Pong | rlx.Ping):
            if isinstance(message, rlx.Ping):
                self.say(rlx.Pong(message.nonce))
        assert isinstance(message, kind), f"{kind.__name__} was expected, {message} came"
        return message

    def say(self, message: rlx.Message) -> None:
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(self.connection.send(message))

    def fail(self, code: rlx.ErrorCode, sentence: str, retry_after: float = 0.0) -> None:
        """Answer with an error, and close as a server does."""
        self.say(rlx.Error(code, sentence, retry_after_seconds=retry_after))
        self.close()

    def welcome(self, session_id: str = "session-1", **limits: Any) -> rlx.Hello:
        """Hear the hello and let the client in."""
        hello: rlx.Hello = self.expect(rlx.Hello)
        granted = rlx.Limits(**limits) if limits else self.connection.limits
        self.say(rlx.Welcome(session_id=session_id, algorithm="scripted", limits=granted))
        return hello

    def answer(self) -> rlx.Message:
        """Hear an init, a step or a reset, and answer it."""
        message: rlx.Message = self.expect((rlx.Init, rlx.Step, rlx.Reset))  # type: ignore[arg-type]
        if isinstance(message, rlx.Reset):
            self.say(rlx.EpisodeReturns(self._returns()))
        else:
            self.say(rlx.Actions(self.policy(message, self)))
        return message

    def close(self) -> None:
        """Half-close, wait for the client to go, close: nothing that was said is lost."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(1 << 16):
                pass
        self.socket.close()

    def kill(self) -> None:
        """Close as a machine that crashed: the client gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _returns(self) -> rlx.Rewards:
        """What a server reports: the rewards since the last init, in episodes that end with reset."""
        since = max(i for i, message in enumerate(self.heard) if isinstance(message, rlx.Init))
        rewards = [m.reward for m in self.heard[since:] if isinstance(m, rlx.Step | rlx.Reset)]
        returns: rlx.Rewards = np.sum(rewards, axis=0)
        return returns


def least_action(message: rlx.Message, talk: Conversation) -> rlx.Leaves:
    """The smallest legal action, for every environment."""
    leaves: rlx.Leaves = []
    for element in talk.hello.action_space.elements():
        least: Any = 0
        if isinstance(element, rlx.Discrete):
            least = element.start
        elif isinstance(element, rlx.Box):
            least = np.where(np.isfinite(element.low), element.low, np.minimum(element.high, 0.0))
        shape = (talk.hello.environments, *element.shape)
        leaves.append(np.broadcast_to(least, shape).astype(element.dtype))
    return leaves


def serve(talk: Conversation) -> None:
    """Let the client in and answer it until it leaves."""
    talk.welcome()
    while True:
        talk.answer()


def refuse(code: rlx.ErrorCode, sentence: str, retry_after: float = 0.0) -> Script:
    """A script that answers the hello with an error."""

    def script(talk: Conversation) -> None:
        talk.expect(rlx.Hello)
        talk.fail(code, sentence, retry_after)

    return script


class RlxPeer(Acceptor):
    """Accepts connections on a free port; the n-th runs the n-th script, later ones the last script."""

    def __init__(self, *scripts: Script, port: int = 0) -> None:
        self._scripts = scripts or (serve,)
        self.talks: list[Conversation] = []
        self._errors: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self._closing = False
        super().__init__(port)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is None and not self._errors.empty():
            raise self._errors.get()

    def close(self) -> None:
        self._closing = True
        super().close()

    def finish(self) -> None:
        """Wait until the scripts of all connections have ended by themselves."""
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a script of the peer still waits for the client"

    def heard(self, *kinds: type[Any]) -> Iterator[Any]:
        """The messages of these kinds, over all connections."""
        for talk in self.talks:
            yield from talk.of(*kinds)

    def _accepted(self, sock: socket.socket) -> None:
        talk = Conversation(sock)
        script = self._scripts[min(len(self.talks), len(self._scripts) - 1)]
        self.talks.append(talk)
        self._start(self._run, script, talk)

    def _run(self, script: Script, talk: Conversation) -> None:
        try:
            script(talk)
        except Gone:
            talk.close()
        except BaseException as error:
            if not self._closing or isinstance(error, rlx.ProtocolError | AssertionError):
                self._errors.put(error)
            talk.close()
