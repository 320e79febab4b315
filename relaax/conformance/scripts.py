"""Scripts of a server's behaviour. A script is called for each connection of the client."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from google.protobuf import json_format

from relaax import rlx
from relaax.conformance.client_session import (
    REQUESTS,
    ClientSession,
    ScriptNotApplicable,
    Writer,
    ended_by,
    golden_message,
)
from relaax.conformance.host import Script
from relaax.conformance.values import random_leaves, with_illegal_value, with_wrong_dtype
from relaax.conformance.vectors import Conversation, golden
from relaax.conformance.wire import (
    ReceiveTimeout,
    RuleViolation,
    decoded,
    encoded,
    encoded_differently,
    framed,
    with_unknown_fields,
)
from relaax.rlx import rlx_pb2
from relaax.rlx.errors import ErrorCode
from relaax.rlx.wire.encoding import CAPABILITIES

ANSWERS = 30
MANY_ANSWERS = 300
EARLY = 3  # answers before an event in the middle of an episode
NONCES = (1, 2**32 - 1, 0)


def serve(answers: int = ANSWERS, *before: rlx_pb2.ServerMessage, writer: Writer = encoded) -> Script:
    """Return a script that admits the client, answers it `answers` times, and sends training_finished.

    `before`: messages in one packet with each answer. `writer`: encoder of messages.
    """

    def script(session: ClientSession) -> None:
        session.writer = writer
        session.welcome()
        for _ in range(answers):
            session.answer(*before)
        session.finish()

    return script


with_other_bytes, with_unknown_fields_added = serve(writer=encoded_differently), serve(writer=with_unknown_fields)
joined = serve(ANSWERS, *2 * [rlx_pb2.ServerMessage(ping={"nonce": 5})])
unasked_pongs = serve(ANSWERS, rlx_pb2.ServerMessage(pong={"nonce": 5}))


def byte_by_byte(session: ClientSession) -> None:
    """Send every frame byte by byte."""
    session.stream.one_by_one = True
    serve()(session)


def pings(session: ClientSession) -> None:
    """Send a ping before each answer; the answer follows the pong."""
    session.welcome()
    for index in range(ANSWERS):
        request = session.expect(*REQUESTS)
        nonce = NONCES[index % len(NONCES)] if index < 2 * len(NONCES) else index
        session.send(rlx_pb2.ServerMessage(ping={"nonce": nonce}))
        assert session.connection.welcome is not None
        with _deadline(session, min(session.stream.deadline, session.connection.welcome.limits.heartbeat_seconds)):
            found = session.expect(rlx.Pong).nonce
        if found != nonce:
            raise rlx.ProtocolError(rlx.ErrorCode.INVALID_VALUE, f"the pong to ping {nonce} has the nonce {found}")
        session.reply(request)
    session.finish()


def slow(session: ClientSession) -> None:
    """Answer after a second, with pings before it. The client must wait for the answer."""
    session.welcome()
    for _ in range(EARLY):
        request = session.expect(*REQUESTS)
        for _ in range(2):
            session.send(rlx_pb2.ServerMessage(ping={"nonce": 9}))
            until = time.monotonic() + 0.5
            with _deadline(session, 0.5), contextlib.suppress(ReceiveTimeout):
                while time.monotonic() < until:
                    session.receive()  # raises ProtocolError for a request, which is not allowed before the answer
        session.reply(request)
    session.finish()


@contextlib.contextmanager
def _deadline(session: ClientSession, seconds: float) -> Iterator[None]:
    before, session.stream.deadline = session.stream.deadline, seconds
    try:
        yield
    finally:
        session.stream.deadline = before


def on_first_connection(script: Script) -> Script:
    """Return a script that runs `script` on the first connection and serves later ones."""

    @functools.wraps(script)
    def first_or_serve(session: ClientSession) -> None:
        (serve(EARLY) if session.index > 0 else script)(session)

    return first_or_serve


def error(code: int, retryable: bool, *, wait: float = 0.0, answers: int = 0) -> Script:
    """Return a script that sends an error on the first connection.

    `answers`: number of answers before it; 0 sends it instead of the welcome. `wait`: `retry_after_seconds`.
    """
    message = _error_message(code, retryable, wait)
    return _at_first(lambda session: session.send_last(encoded(message, session.codec)), answers)


def _error_message(code: int, retryable: bool = True, wait: float = 0.0) -> rlx_pb2.ServerMessage:
    fields = {"code": code, "message": "a conformance check", "retryable": retryable, "retry_after_seconds": wait}
    return rlx_pb2.ServerMessage(error=fields)


def golden_error(conversation: str) -> Script:
    """Return a script that answers the first hello with the error of a golden conversation."""
    return _at_first(lambda session: session.send_last(golden_message(conversation, "error", session.codec)[0]), 0)


def _at_first(last: Callable[[ClientSession], None], answers: int) -> Script:
    """Return a script that calls `last` on the first connection: after the hello, or after `answers` answers."""

    @on_first_connection
    def script(session: ClientSession) -> None:
        if answers:
            session.welcome()
            for _ in range(answers):
                session.answer()
            session.expect(*REQUESTS)
        else:
            session.expect(rlx.Hello)
        last(session)

    return script


@on_first_connection
def refused_at_once(session: ClientSession) -> None:
    """Send an error before the hello is read, and therefore in Protobuf."""
    session.send_last(encoded(_error_message(ErrorCode.OVERLOADED), "protobuf"))


cut = _at_first(lambda session: session.send_last(), EARLY)
"""End the first connection in the middle of an episode, without a message."""

server_bye = _at_first(
    lambda session: session.send_last(golden_message(f"metrics_ping_bye_{session.codec}", "bye", session.codec)[0]),
    EARLY,
)
finished_at_once = _at_first(ClientSession.finish, 0)
finished_in_between = _at_first(ClientSession.finish, EARLY)


@on_first_connection
def error_behind(session: ClientSession) -> None:
    """Send an answer and a retryable error in one packet."""
    session.welcome()
    for _ in range(EARLY):
        session.answer()
    session.trailing = encoded(_error_message(ErrorCode.REBALANCING), session.codec)
    session.answer()
    session.send_last()


@on_first_connection
def cut_between_episodes(session: ClientSession) -> None:
    """End the connection instead of answering a step that ends an episode of a NEXT_STEP environment."""
    session.welcome()
    if not session.next_step.any():
        raise ScriptNotApplicable("no environment has autoreset NEXT_STEP")
    for _ in range(MANY_ANSWERS):
        request = session.expect(*REQUESTS)
        if isinstance(request, rlx.Step) and (ended_by(request) & session.next_step).any():
            session.send_last()
            return
        session.reply(request)
    raise ScriptNotApplicable(f"no step ended an episode in {MANY_ANSWERS} answers")


def welcome_without(capability: str) -> Script:
    """Return a script that sends a welcome without a capability that the hello asks for. The client must close."""

    @on_first_connection
    def script(session: ClientSession) -> None:
        hello = session.expect(rlx.Hello)
        if not getattr(hello, capability):
            raise ScriptNotApplicable(f"the client does not ask for {capability}")
        session.admit(hello, lacks=capability)
        session.record_rest(until_request=True)

    return script


@on_first_connection
def wrong_kind(session: ClientSession) -> None:
    """Send episode_returns instead of actions."""
    session.welcome()
    request = session.expect(rlx.Init)
    n = len(request.observation[0])
    session.stream.send(encoded(rlx_pb2.ServerMessage(episode_returns={"episode_return": [0.0] * n}), session.codec))
    session.record_rest(until_request=True)


def mistake(conversation: Conversation) -> Script:
    """Return a script that makes the mistake of a golden conversation on the first connection.

    A mistake after a valid message is sent in one packet with it, so that the client receives both before it sends.
    """
    *entries, last = conversation.entries

    @on_first_connection
    def script(session: ClientSession) -> None:
        request: Any = None
        for entry in entries:
            if entry["from"] == "client":
                request = _receive_request(session, next(iter(entry["message"])))
                if "hello" in entry["message"]:
                    _require_capabilities(request, entry["message"]["hello"])
                continue
            if entry is entries[-1]:
                session.trailing = _encode_mistake(conversation, last, session)
            (session.admit if "welcome" in entry["message"] else session.reply)(request)
        if entries[-1]["from"] == "client":
            session.stream.send(_encode_mistake(conversation, last, session))
        session.record_rest(until_request=True)

    return script


def _require_capabilities(hello: rlx.Hello, golden_hello: dict[str, Any]) -> None:
    """Raise ScriptNotApplicable if a golden hello asks for a capability that the client does not ask for."""
    asked = json_format.ParseDict(golden_hello, rlx_pb2.Hello())
    for capability in CAPABILITIES:
        if getattr(asked, capability) and not getattr(hello, capability):
            raise ScriptNotApplicable(f"the mistake needs a client with {capability}")


def _receive_request(session: ClientSession, kind: str) -> Any:
    """Return the client's next hello, init or reset. Answer steps before a reset."""
    if kind != "reset":
        return session.expect(rlx.Hello if kind == "hello" else rlx.Init)
    for _ in range(MANY_ANSWERS):
        request = session.expect(*REQUESTS)
        if isinstance(request, rlx.Reset):
            return request
        session.reply(request)
    raise ScriptNotApplicable(f"the client sent no reset in {MANY_ANSWERS} answers")


def _encode_mistake(conversation: Conversation, entry: dict[str, Any], session: ClientSession) -> bytes:
    data = bytes.fromhex(entry["bytes"])
    if conversation.name.startswith("server_malformed_json_"):
        return _encode_wrong_json(conversation.name.removeprefix("server_malformed_json_"), data, session)
    if conversation.name.startswith("server_malformed_two_"):
        return _encode_two_messages(session)
    if conversation.name.startswith("server_malformed_text_"):
        return bytes.fromhex(golden(f"server_malformed_text_{session.codec}").entries[-1]["bytes"])
    try:
        message = decoded(data[4:], "protobuf", rlx_pb2.ServerMessage)
    except RuleViolation:  # the mistake is a payload of the other codec
        return data if session.codec == "protobuf" else encoded(rlx_pb2.ServerMessage(ping={"nonce": 1}), "protobuf")
    if len(data) == 4:
        return data  # the mistake is a length above the limit
    kind = message.WhichOneof("message")
    if kind is None:
        return data if session.codec == "protobuf" else framed(b'{"fly":{"high":true}}')
    if kind == "actions" and conversation.name.startswith("server_parameters_"):
        if list(message.actions.parameters_of) == [2] and session.hello.environments > 2:
            raise ScriptNotApplicable("the client has more than 2 environments")
        wrong, message = message.actions, session.actions()
        message.actions.parameters_of[:], message.actions.parameters[:] = wrong.parameters_of, wrong.parameters
    elif kind == "actions":
        message = _wrong_actions(message.actions, entry["error"], session)
    elif kind == "episode_returns":
        returns, n = message.episode_returns.episode_return, session.hello.environments
        returns[:] = [returns[0]] * (n if len(returns) == 1 else n + 1)
    return encoded(message, session.codec)


def _encode_two_messages(session: ClientSession) -> bytes:
    """Return one frame with a ping and valid actions."""
    messages = rlx_pb2.ServerMessage(ping={"nonce": 1}), session.actions()
    payloads = [encoded(message, session.codec)[4:] for message in messages]
    return framed(b"".join(payloads) if session.codec == "protobuf" else payloads[0][:-1] + b"," + payloads[1][1:])


def _encode_wrong_json(mistake: str, data: bytes, session: ClientSession) -> bytes:
    """Return the golden bytes. If they are actions, return actions of the client's space with the same mistake."""
    if session.codec != "json":
        raise ScriptNotApplicable("the client uses Protobuf")
    if not data[4:].startswith(b'{"actions"'):
        return data
    tree = json_format.MessageToDict(session.actions())
    leaf = tree["actions"]["action"][0]
    if mistake == "axis":
        leaf["shape"][0] = True
    elif mistake == "base64_line":
        leaf["data"] = leaf["data"][:4] + "\n" + leaf["data"][4:]
    else:
        right = leaf["data"]
        leaf["data"] = right.rstrip("=") if right.endswith("=") else right + "="
    return framed(json.dumps(tree).encode())


def _wrong_actions(golden: rlx_pb2.Actions, code: str, session: ClientSession) -> rlx_pb2.ServerMessage:
    """Return actions of the client's space with the mistake of golden actions (Discrete(3), N = 1)."""
    first = golden.action[0]
    leaves = random_leaves(session.hello.action_space, session.hello.environments, np.random.default_rng(0))
    if len(golden.action) > 1:
        leaves = [*leaves, leaves[0]]
    elif first.dtype != rlx_pb2.DTYPE_INT64:
        leaves = with_wrong_dtype(leaves)
    elif len(first.shape) > 1:
        leaves = [leaves[0][..., None], *leaves[1:]]
    elif first.shape[0] != 1:
        leaves = [leaf.repeat(2, axis=0) for leaf in leaves]
    elif len(first.data) < 8:
        message = session.actions(leaves)
        message.actions.action[0].data = message.actions.action[0].data[:-1]
        return message
    elif code == "ERROR_CODE_INVALID_VALUE":
        illegal = with_illegal_value(session.hello.action_space, leaves)
        if illegal is None:
            raise ScriptNotApplicable("every value of the dtypes is an action in the client's space")
        leaves = illegal
    return session.actions(leaves)
