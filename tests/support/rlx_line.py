"""A scripted RLX client on a real connection, with checks of the protocol and access to raw bytes."""

from __future__ import annotations

import socket
import ssl
from types import TracebackType
from typing import Any

from relaax import rlx
from support.rlx_pair import batch, make_hello, make_step
from support.websocket_relay import upgraded

PATIENCE = 60.0  # seconds; a test that waits longer has failed


class Line:
    """A connection to an RLX server.

    with Line(address) as line:
        line.open()                       # hello, welcome
        line.init(0)                      # actions; every number of the observation is 0
        line.step(0)
    """

    def __init__(
        self,
        address: str,
        codec: str = "protobuf",
        *,
        tls: ssl.SSLContext | None = None,
        source: str | None = None,
        websocket: bool = False,
    ) -> None:
        """`source`: source address of the connection, such as 127.0.0.2."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        self.socket = socket.create_connection((host, int(port)), PATIENCE, (source, 0) if source else None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self.websocket = upgraded(self.socket) if websocket else None
        if self.websocket is not None:
            self.socket = self.websocket  # type: ignore[assignment]  # it has the methods used here
        self.connection = rlx.ClientConnection(codec)
        self.pings = 0

    def __enter__(self) -> Line:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, *messages: rlx.Message) -> None:
        self.socket.sendall(b"".join(self.connection.send(message) for message in messages))

    def receive(self) -> rlx.Event:
        """Return the next message that is not a ping, or ConnectionClosed."""
        while True:
            event = self.connection.next_event()
            if isinstance(event, rlx.Ping):
                self.pings += 1
            elif event is not rlx.NEED_DATA:
                return event
            else:
                try:
                    data = self.socket.recv(1 << 16)
                except ConnectionError:
                    data = b""
                self.connection.receive_data(data)

    def expect(self, kind: type[Any]) -> Any:
        event = self.receive()
        assert isinstance(event, kind), f"expected {kind.__name__}, received {event}"
        return event

    def expect_end(self) -> None:
        """Check that the server has closed the connection without further data."""
        assert self.socket.recv(1) == b""

    def open(self, hello: rlx.Hello | None = None, **fields: Any) -> rlx.Welcome:
        """Send a hello and return the welcome. `fields`: arguments of `make_hello`."""
        self.send(hello or make_hello(**fields))
        welcome: rlx.Welcome = self.expect(rlx.Welcome)
        return welcome

    @property
    def hello(self) -> rlx.Hello:
        assert self.connection.hello is not None
        return self.connection.hello

    def observation(self, fill: int) -> rlx.Leaves:
        return batch(self.hello.observation_space, self.hello.environments, fill)

    def init(self, fill: int = 0) -> int:
        """Send an init and return the action of environment 0."""
        self.send(rlx.Init(self.observation(fill)))
        return self._action()

    def step(self, fill: int = 0, **fields: Any) -> int:
        """Send a step and return the action of environment 0. `fields`: arguments of `make_step`."""
        self.send(make_step(self.hello, observation=self.observation(fill), **fields))
        return self._action()

    def _action(self) -> int:
        actions: rlx.Actions = self.expect(rlx.Actions)
        return int(actions.action[0][0])
