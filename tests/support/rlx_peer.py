"""A scripted RLX server on real sockets, with checks of the protocol and one thread per connection.

    def script(conn: PeerConnection) -> None:
        conn.welcome()
        conn.answer()               # init -> actions
        conn.kill()

    with RlxPeer(script, serve) as peer:      # the first connection runs script, every later one serve
        Client(peer.address, ...)

`relaax.rlx.ServerConnection` checks the messages of clients. If a client violates the protocol or a script raises an
error, the test fails when the peer is closed.
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
from relaax.rlx.wire.encoding import CAPABILITIES
from support.acceptor import PATIENCE, Acceptor

Script = Callable[["PeerConnection"], None]
Policy = Callable[[rlx.Message, "PeerConnection"], rlx.Leaves]


class ClientDisconnected(Exception):
    """The client has disconnected."""


class PeerConnection:
    """The server's side of one connection."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(PATIENCE)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected
        self.connection = rlx.ServerConnection()
        self.received: list[rlx.Message] = []
        self.policy: Policy = least_action

    @property
    def hello(self) -> rlx.Hello:
        assert self.connection.hello is not None, "the client has not sent a hello"
        return self.connection.hello

    def of(self, *kinds: type[Any]) -> list[Any]:
        """Return the received messages of these kinds."""
        return [message for message in self.received if isinstance(message, kinds)]

    def receive(self) -> rlx.Message:
        """Return the client's next message of any kind. Raises ClientDisconnected if it disconnected."""
        while (event := self.connection.next_event()) is rlx.NEED_DATA:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError as error:
                raise ClientDisconnected from error
            self.connection.receive_data(data)
        if isinstance(event, rlx.ConnectionClosed):
            raise ClientDisconnected
        self.received.append(event)
        if isinstance(event, rlx.Bye):
            raise ClientDisconnected
        return event

    def expect(self, kind: type[Any]) -> Any:
        """Return the next message other than metrics, ping and pong. It must be of this kind."""
        while isinstance(message := self.receive(), rlx.Metrics | rlx.Pong | rlx.Ping):
            if isinstance(message, rlx.Ping):
                self.send(rlx.Pong(message.nonce))
        assert isinstance(message, kind), f"expected {kind.__name__}, received {message}"
        return message

    def send(self, message: rlx.Message) -> None:
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(self.connection.send(message))

    def fail(self, code: rlx.ErrorCode, sentence: str, retry_after: float = 0.0) -> None:
        """Send an error, and close the connection as a server does."""
        self.send(rlx.Error(code, sentence, retry_after_seconds=retry_after))
        self.close()

    def welcome(
        self,
        session_id: str = "session-1",
        *,
        lacks: str = "",
        parameters: dict[str, list[float]] | None = None,
        **limits: Any,
    ) -> rlx.Hello:
        """Receive the hello, send the welcome, and return the hello.

        `lacks`: a capability that the server does not have. `parameters`: by name, a value for each environment.
        """
        hello: rlx.Hello = self.expect(rlx.Hello)
        granted = rlx.Limits(**limits) if limits else self.connection.limits
        capabilities = {name: getattr(hello, name) and name != lacks for name in CAPABILITIES}
        values = np.array(list(parameters.values())).T.ravel() if parameters else None
        names = tuple(parameters or ())
        self.send(
            rlx.Welcome(session_id, "scripted", granted, parameter_names=names, parameters=values, **capabilities)
        )
        return hello

    def answer(self, parameters: dict[int, list[float]] | None = None) -> rlx.Message:
        """Receive an init, a step or a reset, answer it, and return it. `parameters`: new ones, by environment."""
        message: rlx.Message = self.expect((rlx.Init, rlx.Step, rlx.Reset))  # type: ignore[arg-type]
        if isinstance(message, rlx.Reset):
            self.send(rlx.EpisodeReturns(self._returns()))
        else:
            values = np.concatenate(list(parameters.values())).astype(np.float64) if parameters else None
            self.send(rlx.Actions(self.policy(message, self), tuple(parameters or ()), values))
        return message

    def close(self) -> None:
        """Half-close, wait until the client disconnects, and close, so that all sent messages arrive."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(1 << 16):
                pass
        self.socket.close()

    def kill(self) -> None:
        """Reset the connection, as after a crash of the machine."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _returns(self) -> rlx.Rewards:
        """Return the sums of the rewards since the last init, for episodes that end with reset."""
        since = max(i for i, message in enumerate(self.received) if isinstance(message, rlx.Init))
        rewards = [m.reward for m in self.received[since:] if isinstance(m, rlx.Step | rlx.Reset)]
        returns: rlx.Rewards = np.sum(rewards, axis=0)
        return returns


def least_action(message: rlx.Message, conn: PeerConnection) -> rlx.Leaves:
    """Return the smallest valid action for every environment."""
    leaves: rlx.Leaves = []
    for element in conn.hello.action_space.elements():
        least: Any = 0
        if isinstance(element, rlx.Discrete):
            least = element.start
        elif isinstance(element, rlx.Box):
            least = np.where(np.isfinite(element.low), element.low, np.minimum(element.high, 0.0))
        shape = (conn.hello.environments, *element.shape)
        leaves.append(np.broadcast_to(least, shape).astype(element.dtype))
    return leaves


def serve(conn: PeerConnection) -> None:
    """Accept the client and answer it until it disconnects."""
    conn.welcome()
    while True:
        conn.answer()


def serve_with(policy: Policy) -> Script:
    """Return a script that answers the client with the actions of `policy` until it disconnects."""

    def script(conn: PeerConnection) -> None:
        conn.policy = policy
        serve(conn)

    return script


def refuse(code: rlx.ErrorCode, sentence: str, retry_after: float = 0.0) -> Script:
    """Return a script that answers the hello with an error."""

    def script(conn: PeerConnection) -> None:
        conn.expect(rlx.Hello)
        conn.fail(code, sentence, retry_after)

    return script


class RlxPeer(Acceptor):
    """A server on a free port. The n-th connection runs the n-th script; later connections run the last script."""

    def __init__(self, *scripts: Script, port: int = 0) -> None:
        self._scripts = scripts or (serve,)
        self.connections: list[PeerConnection] = []
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

    def received(self, *kinds: type[Any]) -> Iterator[Any]:
        """Yield the received messages of these kinds, over all connections."""
        for conn in self.connections:
            yield from conn.of(*kinds)

    def _accepted(self, sock: socket.socket) -> None:
        conn = PeerConnection(sock)
        script = self._scripts[min(len(self.connections), len(self._scripts) - 1)]
        self.connections.append(conn)
        self._start(self._run, script, conn)

    def _run(self, script: Script, conn: PeerConnection) -> None:
        try:
            script(conn)
        except ClientDisconnected:
            conn.close()
        except BaseException as error:
            if not self._closing or isinstance(error, rlx.ProtocolError | AssertionError):
                self._errors.put(error)
            conn.close()
