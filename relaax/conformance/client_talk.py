"""One connection of a client under test: the runner takes the role of the server."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from relaax import rlx
from relaax.conformance.values import Array, legal, wire_array
from relaax.conformance.vectors import golden
from relaax.conformance.wire import Line, Over, Silent, Wrong, decoded, encoded, framed, kind_of
from relaax.rlx import rlx_pb2
from relaax.rlx.errors import ErrorCode, ProtocolError
from relaax.rlx.handshake import limits_for
from relaax.rlx.wire.decoding import from_wire

Writer = Callable[[Any, str], bytes]
ASKS = (rlx.Init, rlx.Step, rlx.Reset)


class CannotSay(Exception):
    """The server's mistake does not exist in the client's spaces. The message is a sentence."""


class ClientTalk:
    """What the client says is judged by `relaax.rlx.ServerConnection`; what it is told is written without it."""

    def __init__(self, sock: socket.socket, index: int, deadline: float) -> None:
        self.index = index
        self.began = time.monotonic()
        self.line = Line(sock, deadline)
        self.connection = rlx.ServerConnection()
        self.writer: Writer = encoded
        self.heard: list[rlx.Message] = []
        self.answers = 0
        self.mistake: ProtocolError | None = None
        self.behind = b""  # appended to the next packet
        self.note = ""  # why the script ended before its end
        self.cannot = ""  # why the script does not apply to this client
        self.complete = False  # the script came to its end
        self.over_at: float | None = None  # when the server said its last word
        self.after: list[str] = []  # what the client said after that
        self.closed = False  # by the client
        self._random = np.random.default_rng(index)
        self._returns: Array = np.zeros(0)
        self._between: Array = np.zeros(0, np.bool_)

    @property
    def hello(self) -> rlx.Hello:
        """The client's introduction."""
        assert self.connection.hello is not None
        return self.connection.hello

    @property
    def heartbeat_seconds(self) -> float:
        """The time within which a ping must be answered."""
        assert self.connection.welcome is not None
        return self.connection.welcome.limits.heartbeat_seconds

    @property
    def codec(self) -> str:
        """That of the client's first frame."""
        return self.connection.codec or "protobuf"

    @property
    def next_step(self) -> Array:
        """The environments that say NEXT_STEP: bool [N]."""
        modes = np.array([int(mode) for mode in self.hello.autoreset])
        return np.broadcast_to(modes == rlx.Autoreset.NEXT_STEP, self.hello.environments)

    def of(self, *kinds: type[Any]) -> list[Any]:
        """Return the messages of these kinds that were heard."""
        return [message for message in self.heard if isinstance(message, kinds)]

    def hear(self) -> rlx.Message:
        """Return the client's next message. Raises Over, Silent, and ProtocolError if it broke the protocol."""
        try:
            payload = self.line.payload()
        except Wrong as wrong:
            code = ErrorCode.MALFORMED if " 0 bytes" in str(wrong) else ErrorCode.FRAME_TOO_LARGE
            raise ProtocolError(code, str(wrong)) from None
        self.connection.receive_data(framed(payload))
        event = self.connection.next_event()
        assert not isinstance(event, rlx.ConnectionClosed) and event is not rlx.NEED_DATA
        self.heard.append(event)
        if isinstance(event, rlx.Bye):
            self.closed = True
            raise Over(reset=False)
        return event

    def expect(self, *kinds: type[Any]) -> Any:
        """Return the next message that needs an answer: one of these kinds, says the protocol. Pings are answered."""
        while not isinstance(message := self.hear(), kinds):
            if isinstance(message, rlx.Ping):
                self.say(rlx_pb2.ServerMessage(pong={"nonce": message.nonce}))
        return message

    def say(self, *messages: rlx_pb2.ServerMessage) -> None:
        """Send messages in one packet."""
        data = b""
        for message in messages:
            self.connection.send(from_wire(message))
            data += self.writer(message, self.codec)
        self._send(data)

    def say_golden(self, conversation: str, kind: str) -> None:
        """Send a message of the server in a golden conversation: its very bytes, if the codec is the client's."""
        data, message = golden_message(conversation, kind, self.codec)
        self.connection.send(from_wire(message))
        self._send(data if self.writer is encoded else self.writer(message, self.codec))

    def _send(self, data: bytes) -> None:
        behind, self.behind = self.behind, b""
        self.line.send(data + behind)

    def welcome(self) -> None:
        """Hear the hello; let the client in."""
        self.let_in(self.expect(rlx.Hello))

    def let_in(self, hello: rlx.Hello) -> None:
        """Send a welcome with the vectors' limits if the client's frames fit them."""
        _, message = golden_message("plain_protobuf", "welcome", "protobuf")
        if limits_for(hello, rlx.Limits()).max_frame_bytes <= message.welcome.limits.max_frame_bytes:
            self.say_golden("plain_json" if self.codec == "json" else "plain_protobuf", "welcome")
        else:
            message.welcome.limits.max_frame_bytes = rlx.DEFAULT_MAX_FRAME_BYTES
            self.say(message)
        self.line.max_frame_bytes = message.welcome.limits.max_frame_bytes

    def answer(self, *before: rlx_pb2.ServerMessage) -> None:
        """Hear an init, a step or a reset, and answer it; `before`: what to say first, in the same packet."""
        ask = self.expect(*ASKS)
        self.reply(ask, *before)

    def reply(self, ask: Any, *before: rlx_pb2.ServerMessage) -> None:
        """The answer to an ask that was heard."""
        self._count(ask)
        if isinstance(ask, rlx.Reset):
            self.say(*before, rlx_pb2.ServerMessage(episode_returns={"episode_return": self._returns.tolist()}))
        else:
            self.say(*before, self.actions())
        self.answers += 1

    def actions(self, leaves: list[Array] | None = None) -> rlx_pb2.ServerMessage:
        """Return actions: random ones if none are given."""
        if leaves is None:
            leaves = legal(self.hello.action_space, self.hello.environments, self._random)
        return rlx_pb2.ServerMessage(actions={"action": [wire_array(leaf) for leaf in leaves]})

    def last_word(self, frame: bytes = b"") -> None:
        """Send the frame, end this direction of the stream, and listen until the client has closed its own."""
        self.over_at = time.monotonic()  # before it is sent: a client must not seem early because this thread was late
        self.line.send(frame)
        self.line.end()
        self.watch()

    def finish(self) -> None:
        """Say that training has finished, and listen until the client has gone."""
        data, _ = golden_message(f"training_finished_{self.codec}", "trainingFinished", self.codec)
        self.last_word(data)

    def watch(self, until_asked: bool = False) -> None:
        """Record whatever the client still sends until it closes or the deadline has passed.

        `until_asked`: the first init, step or reset tells enough.
        """
        until = time.monotonic() + self.line.deadline
        self.over_at = self.over_at or time.monotonic()
        while True:
            try:
                payload = self.line.payload(until - time.monotonic())
                self.after.append(kind_of(decoded(payload, self.codec, rlx_pb2.ClientMessage)))
                if until_asked and self.after[-1] in ("init", "step", "reset"):
                    return
            except Over:
                self.closed = True
                return
            except Silent:
                return
            except Wrong:
                self.after.append("no message")
                return

    def _count(self, ask: Any) -> None:
        """Add rewards to the returns, as section 8 says."""
        none = np.zeros(self.hello.environments, np.bool_)
        if isinstance(ask, rlx.Init):
            self._returns, self._between = np.zeros(self.hello.environments), none
            return
        if isinstance(ask, rlx.Reset):
            self._returns = np.where(self._between, 0.0, self._returns + ask.reward)
            return
        first = none if ask.first is None else ask.first
        self._returns = self._returns + np.where(first, 0.0, ask.reward)
        self._returns[ended_by(ask)] = 0
        self._between = ended_by(ask) & self.next_step


def ended_by(step: rlx.Step) -> Array:
    """Return the environments whose episode the step ended: bool [N]."""
    none = np.zeros(len(step.reward), np.bool_)
    return (none if step.terminated is None else step.terminated) | (none if step.truncated is None else step.truncated)


def golden_message(conversation: str, kind: str, codec: str) -> tuple[bytes, Any]:
    """Return a message of the server in a golden conversation: its frame in this codec, and what it says."""
    found = golden(conversation)
    data = bytes.fromhex(found.entry("server", kind)["bytes"])
    message = decoded(data[4:], found.codec, rlx_pb2.ServerMessage)
    return (data if codec == found.codec else encoded(message, codec)), message
