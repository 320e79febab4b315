"""One connection to a server under test. The check takes the role of the client."""

from __future__ import annotations

import contextlib
import math
import re
import socket
import time
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from relaax.client.connection.address import Endpoint
from relaax.conformance.adaptation import AdaptedConversation, Settings
from relaax.conformance.wire import (
    FrameStream,
    ReceiveTimeout,
    RuleViolation,
    StreamEnded,
    code_name,
    decoded,
    encoded,
    kind_of,
)
from relaax.rlx import Actions, Welcome, rlx_pb2
from relaax.rlx.checks import check_new_parameters
from relaax.rlx.errors import ProtocolError
from relaax.rlx.handshake import check_first_parameters
from relaax.rlx.leaf_checks import LeavesCheck
from relaax.rlx.wire.decoding import from_wire
from relaax.rlx.wire.encoding import CAPABILITIES

if TYPE_CHECKING:
    from relaax.conformance.websocket import WebSocketWire

# Error codes that a server may send at any point for a reason of its own.
_OWN_REASONS = {"UNAUTHENTICATED", "UNSUPPORTED_SPACE", "SPACE_MISMATCH", "OVERLOADED", "UNAVAILABLE", "REBALANCING"}
_WAITING = {"OVERLOADED", "UNAVAILABLE", "REBALANCING"}

_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{0,128}")


class ConversationRefused(Exception):
    """A valid refusal of the conversation by the server. The message is its reason.

    `wait`: seconds to wait before a retry; None if a retry is useless.
    """

    def __init__(self, sentence: str, wait: float | None = None) -> None:
        super().__init__(sentence)
        self.wait = wait


def connected(address: Endpoint, settings: Settings) -> socket.socket | WebSocketWire:
    """Return a connection to the server under test. Raises OSError, and RuleViolation if it refuses the WebSocket."""
    sock = socket.create_connection(address[:2], timeout=settings.deadline)
    try:
        if settings.tls is not None:
            sock = settings.tls.wrap_socket(sock, server_hostname=address.host)
        if address.path is None:
            return sock
        from relaax.conformance.websocket import WebSocketWire, request

        host = f"[{address.host}]" if ":" in address.host else address.host
        return WebSocketWire(sock, request(f"{host}:{address.port}", address.path))
    except (OSError, ValueError, RuleViolation):
        sock.close()
        raise


class ServerSession:
    """A connection to the server under test."""

    def __init__(self, address: Endpoint, settings: Settings, codec: str, one_by_one: bool = False) -> None:
        self.stream = FrameStream(connected(address, settings), settings.deadline, one_by_one)
        self.codec = codec
        self.limits: rlx_pb2.Limits | None = None
        self.parameters: int | None = None  # number of those in the welcome; None without `environment_parameters`
        self.codec_is_unknown = False  # whether the server may answer before it detects the codec

    def __enter__(self) -> ServerSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def send(self, **message: Any) -> None:
        """Send a message."""
        self.stream.send(encoded(rlx_pb2.ClientMessage(**message), self.codec))

    def receive(self) -> Any:
        """Return the server's next message; answer pings. Raises RuleViolation at the deadline or the stream's end."""
        until = time.monotonic() + self.stream.deadline
        while True:
            try:
                payload = self.stream.payload(until - time.monotonic())
            except (StreamEnded, ReceiveTimeout) as end:
                raise RuleViolation(f"a reply was expected, but {end}") from None
            codec = "protobuf" if self.codec_is_unknown and not payload.startswith(b"{") else self.codec
            message = decoded(payload, codec, rlx_pb2.ServerMessage)
            if message.HasField("ping"):
                self.send(pong={"nonce": message.ping.nonce})
                continue
            return message

    def expect(self, kind: str) -> Any:
        """Return the server's next message, which must have this kind. Raises RuleViolation and ConversationRefused."""
        message = self.receive()
        found = kind_of(message)
        if found == kind:
            return message
        if found == "error":
            _check_own_reason(message.error, _OWN_REASONS)
            raise RuleViolation(f"{kind} was expected, not the error {_sentence(message)}")
        if found in ("training_finished", "bye"):
            raise ConversationRefused(f"the server ended the connection with {found}")
        raise RuleViolation(f"{kind} was expected, but the server sent {found}")

    def expect_error(self, code: str, message: Any = None) -> None:
        """Check that the server sends this error with a sentence and ends its stream.

        `message`: the server's message, if it was already received. Raises RuleViolation and ConversationRefused.
        """
        message = message or self.receive()
        if not _is_error(message, code):
            found = kind_of(message)
            if found == "error":
                _check_own_reason(message.error, _WAITING)
                found = f"the error {_sentence(message)}"
            raise _wrong_reply(code, found)
        if not message.error.message:
            raise RuleViolation(f"the error {code} has no message")
        wait = message.error.retry_after_seconds
        if not 0 <= wait < math.inf:
            raise RuleViolation(f"retry_after_seconds of the error {code} is {wait}")
        self.stream.expect_end()

    def apply_welcome(self, welcome: Any) -> None:
        """Check a welcome and apply its limits. Raises RuleViolation."""
        if welcome.protocol_version != 1:
            raise RuleViolation(f"the welcome has protocol_version {welcome.protocol_version}, not 1")
        if _SESSION_ID.fullmatch(welcome.session_id) is None:
            raise RuleViolation(f"the session id {welcome.session_id!r} must be at most 128 letters, digits, _ and -")
        for name in ("idle_timeout_seconds", "heartbeat_seconds"):
            if not 0 < getattr(welcome.limits, name) < math.inf:
                raise RuleViolation(f"the welcome has limits.{name} {getattr(welcome.limits, name)}")
        self.limits = welcome.limits
        self.stream.max_frame_bytes = welcome.limits.max_frame_bytes

    def send_bye(self) -> None:
        """Send bye, and check that the server ends its stream without another message. Raises RuleViolation."""
        self.send(bye={"reason": "done"})
        self.stream.end()
        while True:
            try:
                message = decoded(self.stream.payload(), self.codec, rlx_pb2.ServerMessage)
            except StreamEnded as end:
                if end.reset:
                    raise RuleViolation("the connection was reset after the client's bye") from None
                return
            except ReceiveTimeout as timeout:
                raise RuleViolation(
                    f"{timeout} after the client's bye, and the server did not end its stream"
                ) from None
            if kind_of(message) != "ping":  # a ping may have been in flight
                raise RuleViolation(f"the server sent another message after the client's bye: {kind_of(message)}")


def _wrong_reply(code: str, found: str) -> RuleViolation:
    return RuleViolation(f"the error {code} was expected, not {found}")


def _is_error(message: Any, code: str) -> bool:
    return kind_of(message) == "error" and code_name(message.error.code) == code


def _sentence(message: Any) -> str:
    return f"{code_name(message.error.code)}: {message.error.message}"


def _check_own_reason(error: Any, codes: set[str]) -> None:
    """Raise ConversationRefused if the error has one of these codes."""
    code = code_name(error.code)
    if code in codes:
        raise ConversationRefused(f"{code}: {error.message}", error.retry_after_seconds if code in _WAITING else None)


def check_actions(adapted: AdaptedConversation, session: ServerSession) -> None:
    """Receive actions for the environments of the conversation. Raise RuleViolation if they are invalid."""
    message = session.expect("actions")
    try:
        actions = from_wire(message)
        assert isinstance(actions, Actions)
        LeavesCheck(adapted.spaces[1], adapted.environments, bounded=True).check("action", actions.action)
        check_new_parameters(actions, session.parameters, adapted.environments)
    except ProtocolError as error:
        raise RuleViolation(error.message) from None


def no_support(capability: str) -> ConversationRefused:
    """Return the refusal of a server that does not support a capability."""
    return ConversationRefused(f"the server does not support {CAPABILITIES[capability]}")


def play(adapted: AdaptedConversation, session: ServerSession) -> None:
    """Play the whole conversation. Raises RuleViolation, ConversationRefused and ImpossibleMistake."""
    entries = adapted.conversation.entries
    ended = False
    for index, entry in enumerate(entries):
        if entry["from"] == "server":
            if "error" not in entries[index - 1]:
                ended = _check_reply(adapted, session, entry)
        elif entry.get("end_of_stream"):
            session.stream.end()
            _check_stream_ends(session)
            return
        elif "error" in entry:
            # A server detects a length above the limit with the fourth byte, but the codec with the fifth.
            session.codec_is_unknown = index == 0 and entry["error"] == "ERROR_CODE_FRAME_TOO_LARGE"
            session.stream.send(adapted.frame(entry, session.limits))
            _check_mistake_refused(
                adapted, session, entry["error"].removeprefix("ERROR_CODE_"), entries[index - 1] if index else None
            )
            return
        else:
            session.stream.send(adapted.frame(entry, session.limits))
            ended = "bye" in entry["message"]
    if ended:
        session.stream.end()
        session.stream.expect_end()
    else:
        last_request = next(iter(entries[-1]["message"])) if entries[-1]["from"] == "client" else ""
        if last_request in ("init", "step"):  # the file ends before this answer
            check_actions(adapted, session)
        elif last_request == "reset":
            session.expect("episode_returns")
        session.send_bye()


def _check_reply(adapted: AdaptedConversation, session: ServerSession, entry: dict[str, Any]) -> bool:
    """Check the server's message for an entry. Return whether it ends the conversation."""
    tree = entry["message"]
    if "ping" in tree or "bye" in tree:
        return False  # a server chooses when it sends these
    if "trainingFinished" in tree:
        raise ConversationRefused("only the server decides when training ends")
    if "error" in tree:  # a refusal without a mistake of the client
        return _check_token_refused(session, tree["error"]["code"].removeprefix("ERROR_CODE_"))
    if "welcome" in tree:
        _check_welcome(adapted, session, json_format.ParseDict(tree, rlx_pb2.ServerMessage()).welcome)
    elif "actions" in tree:
        check_actions(adapted, session)
    elif "pong" in tree:
        nonce = session.expect("pong").pong.nonce
        if nonce != tree["pong"].get("nonce", 0):
            raise RuleViolation(f"the pong's nonce is {nonce}; the ping's was {tree['pong'].get('nonce', 0)}")
    else:
        found = list(session.expect("episode_returns").episode_returns.episode_return)
        due = [float(number) for number in tree["episodeReturns"]["episodeReturn"]]
        if found != due:
            raise RuleViolation(f"episode_returns are {found}; the sums of the rewards are {due}")
    return False


def _check_welcome(adapted: AdaptedConversation, session: ServerSession, golden: Any) -> None:
    """Check the welcome. `golden`: that of the conversation, whose capabilities the conversation needs."""
    welcome = session.expect("welcome").welcome
    session.apply_welcome(welcome)
    for capability, what in CAPABILITIES.items():
        granted, asked = getattr(welcome, capability), capability in adapted.asks
        if granted and not asked:
            raise RuleViolation(f"the welcome has {capability}, and the hello did not ask for it")
        if asked and granted != getattr(golden, capability):
            raise ConversationRefused(f"the server supports {what}") if granted else no_support(capability)
    try:
        message = from_wire(rlx_pb2.ServerMessage(welcome=welcome))
        assert isinstance(message, Welcome)
        check_first_parameters(message, adapted.environments)
    except ProtocolError as error:
        raise RuleViolation(error.message) from None
    session.parameters = len(welcome.parameter_names) if welcome.environment_parameters else None


def _check_token_refused(session: ServerSession, code: str) -> bool:
    if code != "UNAUTHENTICATED":
        raise ConversationRefused(f"only the server decides when it sends {code}")
    message = session.receive()
    if kind_of(message) == "welcome":
        raise ConversationRefused("the server requires no token")
    if not _is_error(message, code):
        raise RuleViolation(f"a wrong token was answered with {kind_of(message)}: {message.error.message}")
    return True


def _check_mistake_refused(
    adapted: AdaptedConversation, session: ServerSession, code: str, before: dict[str, Any] | None
) -> None:
    """Check that the server refuses the mistake.

    Some messages are mistakes only before the server's answer. If the server has already sent the answer, the rule does
    not apply.
    """
    if before is None or before["from"] == "server":
        session.expect_error(code)
        return
    kind = "welcome" if "hello" in before["message"] else "actions"
    message = session.receive()
    if kind_of(message) == kind:
        raise ConversationRefused(f"the server sent {kind} before it received the message, which is then allowed")
    if kind_of(message) != "error":
        raise _wrong_reply(code, kind_of(message))
    if not _is_error(message, code):
        raise ConversationRefused(_sentence(message))
    session.stream.expect_end()


def _check_stream_ends(session: ServerSession) -> None:
    """Check that the server ends its stream after the client's. Messages in flight are ignored."""
    until = time.monotonic() + session.stream.deadline
    with contextlib.suppress(StreamEnded):
        while time.monotonic() < until:
            try:
                session.stream.payload()
            except ReceiveTimeout:
                break
        raise RuleViolation("the client ended its stream, but the server did not end its own")
