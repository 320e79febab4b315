"""One connection of a client under test. The check takes the role of the server."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from relaax import rlx
from relaax.conformance.values import Array, random_leaves, wire_array
from relaax.conformance.vectors import golden
from relaax.conformance.wire import (
    FrameStream,
    ReceiveTimeout,
    RuleViolation,
    StreamEnded,
    decoded,
    encoded,
    framed,
    kind_of,
)
from relaax.rlx import rlx_pb2
from relaax.rlx.errors import ErrorCode, ProtocolError
from relaax.rlx.handshake import limits_for
from relaax.rlx.wire.decoding import from_wire
from relaax.rlx.wire.encoding import CAPABILITIES

PARAMETERS = ("gravity", "size")
"""Names of the parameters that a client gets if it asks for `environment_parameters`."""
Writer = Callable[[Any, str], bytes]
REQUESTS = (rlx.Init, rlx.Step, rlx.Reset)


class ScriptNotApplicable(Exception):
    """A script that does not apply, such as a mistake that the client's spaces exclude. The message is a sentence."""


class ClientSession:
    """A connection of the client under test.

    `relaax.rlx.ServerConnection` checks the client's messages. The server's messages are encoded without relaax.rlx.
    """

    def __init__(self, sock: socket.socket, index: int, deadline: float) -> None:
        self.index = index
        self.started = time.monotonic()
        self.stream = FrameStream(sock, deadline)
        self.connection = rlx.ServerConnection()
        self.writer: Writer = encoded
        self.received: list[rlx.Message] = []
        self.answers = 0
        self.mistake: ProtocolError | None = None
        self.trailing = b""  # bytes to append to the next packet
        self.end_reason = ""  # why the script stopped early
        self.not_applicable = ""  # why the script does not apply to the client
        self.complete = False  # whether the script ran to its end
        self.last_sent_at: float | None = None  # when the server sent its last message
        self.received_after: list[str] = []  # kinds of the client's messages after that
        self.closed = False  # whether the client closed the connection
        self._random = np.random.default_rng(index)
        self._returns: Array = np.zeros(0)

    @property
    def hello(self) -> rlx.Hello:
        """The client's hello. It must have been received."""
        assert self.connection.hello is not None
        return self.connection.hello

    @property
    def codec(self) -> str:
        """The codec of the client's first frame; "protobuf" before it."""
        return self.connection.codec or "protobuf"

    @property
    def next_step(self) -> Array:
        """The environments with autoreset NEXT_STEP: bool [N]."""
        modes = np.array([int(mode) for mode in self.hello.autoreset])
        return np.broadcast_to(modes == rlx.Autoreset.NEXT_STEP, self.hello.environments)

    def messages_of(self, *kinds: type[Any]) -> list[Any]:
        """Return the received messages of these kinds."""
        return [message for message in self.received if isinstance(message, kinds)]

    def receive(self) -> rlx.Message:
        """Return the client's next message. Raises StreamEnded, ReceiveTimeout and ProtocolError."""
        try:
            payload = self.stream.payload()
        except RuleViolation as violation:
            code = ErrorCode.MALFORMED if " 0 bytes" in str(violation) else ErrorCode.FRAME_TOO_LARGE
            raise ProtocolError(code, str(violation)) from None
        self.connection.receive_data(framed(payload))
        event = self.connection.next_event()
        assert not isinstance(event, rlx.ConnectionClosed) and event is not rlx.NEED_DATA
        self.received.append(event)
        if isinstance(event, rlx.Bye):
            self.closed = True
            raise StreamEnded(reset=False)
        return event

    def expect(self, *kinds: type[Any]) -> Any:
        """Return the next message of these kinds. Answer pings, and ignore other messages before it."""
        while not isinstance(message := self.receive(), kinds):
            if isinstance(message, rlx.Ping):
                self.send(rlx_pb2.ServerMessage(pong={"nonce": message.nonce}))
        return message

    def send(self, *messages: rlx_pb2.ServerMessage) -> None:
        """Send messages in one packet."""
        data = b""
        for message in messages:
            self.connection.send(from_wire(message))
            data += self.writer(message, self.codec)
        self._send_bytes(data)

    def _send_bytes(self, data: bytes) -> None:
        trailing, self.trailing = self.trailing, b""
        self.stream.send(data + trailing)

    def welcome(self) -> None:
        """Receive the hello, and send the welcome."""
        self.admit(self.expect(rlx.Hello))

    def admit(self, hello: rlx.Hello, lacks: str = "") -> None:
        """Send the bytes of the golden welcome, with the capabilities that the hello asks for.

        Its `max_frame_bytes` is higher if the client's frames need it. `lacks`: a capability that it does not have.
        """
        data, message = golden_message(f"plain_{self.codec}", "welcome", self.codec)
        welcome, plain = message.welcome, message.SerializeToString()
        for capability in CAPABILITIES:
            setattr(welcome, capability, getattr(hello, capability) and capability != lacks)
        if welcome.environment_parameters:
            welcome.parameter_names.extend(PARAMETERS)
            welcome.parameters.extend(self._random.normal(size=len(PARAMETERS) * hello.environments).tolist())
        if limits_for(hello, rlx.Limits()).max_frame_bytes > welcome.limits.max_frame_bytes:
            welcome.limits.max_frame_bytes = rlx.DEFAULT_MAX_FRAME_BYTES
        if message.SerializeToString() == plain and self.writer is encoded:
            self.connection.send(from_wire(message))
            self._send_bytes(data)
        else:
            self.send(message)
        self.stream.max_frame_bytes = message.welcome.limits.max_frame_bytes

    def answer(self, *before: rlx_pb2.ServerMessage) -> None:
        """Receive an init, a step or a reset, and answer it. `before`: messages in one packet with the answer."""
        self.reply(self.expect(*REQUESTS), *before)

    def reply(self, request: Any, *before: rlx_pb2.ServerMessage) -> None:
        """Answer a request. `before`: messages in the same packet before the answer."""
        self._count(request)
        if isinstance(request, rlx.Reset):
            self.send(*before, rlx_pb2.ServerMessage(episode_returns={"episode_return": self._returns.tolist()}))
        else:
            self.send(*before, self.actions())
        self.answers += 1

    def actions(self, leaves: list[Array] | None = None) -> rlx_pb2.ServerMessage:
        """Return a message with these actions; random actions by default."""
        if leaves is None:
            leaves = random_leaves(self.hello.action_space, self.hello.environments, self._random)
        message = rlx_pb2.ServerMessage(actions={"action": [wire_array(leaf) for leaf in leaves]})
        admitted = self.connection.welcome
        if admitted is not None and admitted.environment_parameters:
            of = np.flatnonzero(self._random.random(self.hello.environments) < 0.3).tolist()
            message.actions.parameters_of.extend(of)
            message.actions.parameters.extend(self._random.normal(size=len(of) * len(PARAMETERS)).tolist())
        return message

    def send_last(self, frame: bytes = b"") -> None:
        """Send the frame, end this direction of the stream, and receive until the client closes."""
        # Taken before sending. Otherwise a delay of this thread would shorten the measured wait of the client.
        self.last_sent_at = time.monotonic()
        self.stream.send(frame)
        self.stream.end()
        self.record_rest()

    def finish(self) -> None:
        """Send training_finished, and receive until the client closes."""
        data, _ = golden_message(f"training_finished_{self.codec}", "trainingFinished", self.codec)
        self.send_last(data)

    def record_rest(self, until_request: bool = False) -> None:
        """Record the client's messages until it closes or the deadline passes.

        `until_request`: stop also after an init, a step or a reset.
        """
        until = time.monotonic() + self.stream.deadline
        self.last_sent_at = self.last_sent_at or time.monotonic()
        while True:
            try:
                payload = self.stream.payload(until - time.monotonic())
                self.received_after.append(kind_of(decoded(payload, self.codec, rlx_pb2.ClientMessage)))
                if until_request and self.received_after[-1] in ("init", "step", "reset"):
                    return
            except StreamEnded:
                self.closed = True
                return
            except ReceiveTimeout:
                return
            except RuleViolation:
                self.received_after.append("no message")
                return

    def _count(self, request: Any) -> None:
        """Add the rewards of a request to the returns, as in section 8 of the specification."""
        none = np.zeros(self.hello.environments, np.bool_)
        if isinstance(request, rlx.Init):
            self._returns = np.zeros(self.hello.environments)
            return
        if isinstance(request, rlx.Reset):
            away = self.connection.between_episodes
            self._returns = np.where(none if away is None else away, 0.0, self._returns + request.reward)
            return
        first = none if request.first is None else request.first
        held = none if request.idle is None else request.idle & ~ended_by(request)
        self._returns = self._returns + np.where(first | held, 0.0, request.reward)
        self._returns[ended_by(request)] = 0


def ended_by(step: rlx.Step) -> Array:
    """Return the environments whose episode the step ends: bool [N]."""
    none = np.zeros(len(step.reward), np.bool_)
    return (none if step.terminated is None else step.terminated) | (none if step.truncated is None else step.truncated)


def golden_message(conversation: str, kind: str, codec: str) -> tuple[bytes, Any]:
    """Return a server message of a golden conversation: its frame in this codec, and its Protobuf object."""
    found = golden(conversation)
    data = bytes.fromhex(found.entry("server", kind)["bytes"])
    message = decoded(data[4:], found.codec, rlx_pb2.ServerMessage)
    return (data if codec == found.codec else encoded(message, codec)), message
