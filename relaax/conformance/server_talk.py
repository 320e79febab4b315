"""Playing one golden conversation against a real server: the runner takes the role of the client."""

from __future__ import annotations

import contextlib
import math
import re
import socket
import time
from typing import TYPE_CHECKING, Any

from relaax.client.connection.address import Endpoint
from relaax.conformance.adaptation import AdaptedConversation, Settings
from relaax.conformance.wire import Line, Over, Silent, Wrong, code_name, decoded, encoded, kind_of
from relaax.rlx import Actions, Space, rlx_pb2
from relaax.rlx.errors import ProtocolError
from relaax.rlx.leaf_checks import LeavesCheck
from relaax.rlx.wire.decoding import from_wire

if TYPE_CHECKING:
    from relaax.conformance.websocket import WebSocketWire

# What a server may say instead of what the conversation says, for a reason of its own.
_OWN_REASONS = {"UNAUTHENTICATED", "UNSUPPORTED_SPACE", "SPACE_MISMATCH", "OVERLOADED", "UNAVAILABLE", "REBALANCING"}
_WAITING = {"OVERLOADED", "UNAVAILABLE", "REBALANCING"}
_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{0,128}")


class ConversationRefused(Exception):
    """The server does not hold this conversation, and is right. The message is its reason."""

    def __init__(self, sentence: str, wait: float | None = None) -> None:
        super().__init__(sentence)
        self.wait = wait


def connected(address: Endpoint, settings: Settings) -> socket.socket | WebSocketWire:
    """Return a connection to the server under test. Raises OSError, and Wrong if it takes no WebSocket."""
    sock = socket.create_connection(address[:2], timeout=settings.deadline)
    try:
        if settings.tls is not None:
            sock = settings.tls.wrap_socket(sock, server_hostname=address.host)
        if address.path is None:
            return sock
        from relaax.conformance.websocket import WebSocketWire, request

        host = f"[{address.host}]" if ":" in address.host else address.host
        return WebSocketWire(sock, request(f"{host}:{address.port}", address.path))
    except (OSError, ValueError, Wrong):
        sock.close()
        raise


class ServerTalk:
    """A connection to the server under test."""

    def __init__(self, address: Endpoint, settings: Settings, codec: str, one_by_one: bool = False) -> None:
        self.line = Line(connected(address, settings), settings.deadline, one_by_one)
        self.codec = codec
        self.limits: rlx_pb2.Limits | None = None
        self.undecided = False  # whether the server may have to answer before it knows the codec

    def __enter__(self) -> ServerTalk:
        return self

    def __exit__(self, *_: object) -> None:
        self.line.close()

    def say(self, message: rlx_pb2.ClientMessage) -> None:
        """Send a message."""
        self.line.send(encoded(message, self.codec))

    def hear(self) -> Any:
        """Return the server's next message; its pings are answered and passed over.

        Raises Wrong, also if the server fell silent or has left.
        """
        until = time.monotonic() + self.line.deadline
        while True:
            try:
                payload = self.line.payload(until - time.monotonic())
            except (Over, Silent) as end:
                raise Wrong(f"an answer was due, but {end}") from None
            codec = "protobuf" if self.undecided and not payload.startswith(b"{") else self.codec
            message = decoded(payload, codec, rlx_pb2.ServerMessage)
            if message.HasField("ping"):
                self.say(rlx_pb2.ClientMessage(pong={"nonce": message.ping.nonce}))
                continue
            return message

    def expect(self, kind: str) -> Any:
        """Return the server's next message, which must be of this kind. Raises Wrong and ConversationRefused."""
        message = self.hear()
        found = kind_of(message)
        if found == kind:
            return message
        if found == "error":
            _own_reason(message.error, _OWN_REASONS)
            raise Wrong(f"{kind} was due, the error {code_name(message.error.code)}: {message.error.message} came")
        if found in ("training_finished", "bye"):
            raise ConversationRefused(f"the server said {found}")
        raise Wrong(f"{kind} was due, {found} came")

    def expect_error(self, code: str, message: Any = None) -> None:
        """Expect the server to report this error in a sentence and to end its stream.

        Raises Wrong and ConversationRefused.

        `message`: what it said, if that was heard before.
        """
        message = message or self.hear()
        found = kind_of(message)
        if found == "error" and code_name(message.error.code) != code:
            _own_reason(message.error, _WAITING)
        if found != "error" or code_name(message.error.code) != code:
            came = f"the error {code_name(message.error.code)}: {message.error.message}" if found == "error" else found
            raise Wrong(f"the error {code} was due, {came} came")
        if not message.error.message:
            raise Wrong(f"the error {code} came without a sentence")
        wait = message.error.retry_after_seconds
        if not 0 <= wait < math.inf:
            raise Wrong(f"the error {code} says to wait {wait} s")
        self.line.expect_end()

    def learn(self, welcome: Any) -> None:
        """Check a welcome and hold the server to it. Raises Wrong."""
        if welcome.protocol_version != 1:
            raise Wrong(f"the welcome says protocol_version {welcome.protocol_version}")
        if _SESSION_ID.fullmatch(welcome.session_id) is None:
            raise Wrong(f"the session id {welcome.session_id!r} is not of at most 128 letters, digits, _ and -")
        for name in ("idle_timeout_seconds", "heartbeat_seconds"):
            if not 0 < getattr(welcome.limits, name) < math.inf:
                raise Wrong(f"limits.{name} is {getattr(welcome.limits, name)}")
        self.limits = welcome.limits
        self.line.max_frame_bytes = welcome.limits.max_frame_bytes

    def leave(self) -> None:
        """Say goodbye; the server ends its stream, and says nothing more. Raises Wrong."""
        self.say(rlx_pb2.ClientMessage(bye={"reason": "done"}))
        self.line.end()
        while True:
            try:
                message = decoded(self.line.payload(), self.codec, rlx_pb2.ServerMessage)
            except Over as over:
                if over.reset:
                    raise Wrong("the connection was reset after the client's bye") from None
                return
            except Silent as silent:
                raise Wrong(f"{silent} after the client's bye: the stream was not ended") from None
            if kind_of(message) != "ping":  # one may have been on its way
                raise Wrong(f"after the client's bye came {kind_of(message)}")


def _own_reason(error: Any, codes: set[str]) -> None:
    """Raise ConversationRefused if the error has one of these codes."""
    code = code_name(error.code)
    if code in codes:
        raise ConversationRefused(f"{code}: {error.message}", error.retry_after_seconds if code in _WAITING else None)


def check_actions(message: Any, space: Space, environments: int) -> None:
    """Raise Wrong if these are no actions for so many environments."""
    try:
        actions = from_wire(message)
        assert isinstance(actions, Actions)
        LeavesCheck(space, environments, bounded=True).check("action", actions.action)
    except ProtocolError as error:
        raise Wrong(error.message) from None


def play(adapted: AdaptedConversation, talk: ServerTalk) -> None:
    """The whole conversation. Raises Wrong, ConversationRefused, and Untranslatable."""
    entries = adapted.conversation.entries
    ended = False
    for index, entry in enumerate(entries):
        if entry["from"] == "server":
            if "error" not in entries[index - 1]:
                ended = _hear(adapted, talk, entry)
        elif entry.get("end_of_stream"):
            talk.line.end()
            _drain(talk)
            return
        elif "error" in entry:
            # A length over the limit is noticed with its fourth byte; the fifth, which tells the codec, may come later.
            talk.undecided = index == 0 and entry["error"] == "ERROR_CODE_FRAME_TOO_LARGE"
            talk.line.send(adapted.frame(entry, talk.limits))
            _find(adapted, talk, entry["error"].removeprefix("ERROR_CODE_"), entries[index - 1] if index else None)
            return
        else:
            talk.line.send(adapted.frame(entry, talk.limits))
            ended = "bye" in entry["message"]
    if ended:
        talk.line.end()
        talk.line.expect_end()
    else:
        if entries[-1]["from"] == "client":
            _answer(adapted, talk, next(iter(entries[-1]["message"])))
        talk.leave()


_DUE = {"init": "actions", "step": "actions", "reset": "episode_returns"}


def _answer(adapted: AdaptedConversation, talk: ServerTalk, asked: str) -> None:
    """The answer to the last message, which the file does not show."""
    if asked in _DUE:
        answer = talk.expect(_DUE[asked])
        if _DUE[asked] == "actions":
            check_actions(answer, adapted.spaces[1], adapted.environments)


def _hear(adapted: AdaptedConversation, talk: ServerTalk, entry: dict[str, Any]) -> bool:
    """Return what the server is to say here. Whether that ends the conversation."""
    tree = entry["message"]
    if "ping" in tree or "bye" in tree:
        return False  # a real server pings and leaves when it likes
    if "trainingFinished" in tree:
        raise ConversationRefused("only the server decides when training ends")
    if "error" in tree:  # no mistake of the client: a refusal
        return _refusal(talk, tree["error"]["code"].removeprefix("ERROR_CODE_"))
    if "welcome" in tree:
        talk.learn(talk.expect("welcome").welcome)
    elif "actions" in tree:
        check_actions(talk.expect("actions"), adapted.spaces[1], adapted.environments)
    elif "pong" in tree:
        nonce = talk.expect("pong").pong.nonce
        if nonce != tree["pong"].get("nonce", 0):
            raise Wrong(f"the pong's nonce is {nonce}; the ping's was {tree['pong'].get('nonce', 0)}")
    else:
        found, due = list(talk.expect("episode_returns").episode_returns.episode_return), _returns(tree)
        if found != due:
            raise Wrong(f"episode_returns are {found}; the rewards since the episodes began add up to {due}")
    return False


def _returns(tree: dict[str, Any]) -> list[float]:
    return [float(number) for number in tree["episodeReturns"]["episodeReturn"]]


def _refusal(talk: ServerTalk, code: str) -> bool:
    if code != "UNAUTHENTICATED":
        raise ConversationRefused(f"only the server decides when to say {code}")
    message = talk.hear()
    if kind_of(message) == "welcome":
        raise ConversationRefused("the server asks for no token")
    if kind_of(message) != "error" or code_name(message.error.code) != code:
        raise Wrong(f"a wrong token was answered with {kind_of(message)}: {message.error.message}")
    return True


def _find(adapted: AdaptedConversation, talk: ServerTalk, code: str, before: dict[str, Any] | None) -> None:
    """Check that the server finds the mistake; one that is a mistake only before an answer may come too late."""
    if before is None or before["from"] == "server":
        talk.expect_error(code)
        return
    kind = "welcome" if "hello" in before["message"] else "actions"
    message = talk.hear()
    if kind_of(message) == "error" and code_name(message.error.code) == code:
        talk.line.expect_end()
    elif kind_of(message) == kind:
        raise ConversationRefused(f"the server sent its {kind} before it read the message, which is allowed after it")
    elif kind_of(message) == "error":
        raise ConversationRefused(f"{code_name(message.error.code)}: {message.error.message}")
    else:
        raise Wrong(f"the error {code} was due, {kind_of(message)} came")


def _drain(talk: ServerTalk) -> None:
    """The client's stream has ended: the server may say what it had begun to say, then ends its own."""
    until = time.monotonic() + talk.line.deadline
    with contextlib.suppress(Over):
        while time.monotonic() < until:
            try:
                talk.line.payload()
            except Silent:
                break
        raise Wrong("the client's stream ended, and the server did not end its own")
