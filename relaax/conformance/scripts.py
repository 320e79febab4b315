"""Ways in which a server may behave: what is done on each connection of a client."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf import json_format

from relaax import rlx
from relaax.conformance.client_talk import ASKS, CannotSay, ClientTalk, Writer, ended_by, golden_message
from relaax.conformance.host import Script
from relaax.conformance.values import legal, of_another_dtype, out_of_range
from relaax.conformance.vectors import Conversation, golden
from relaax.conformance.wire import Silent, Wrong, decoded, encoded, framed, with_unknown_fields, written_otherwise
from relaax.rlx import rlx_pb2
from relaax.rlx.errors import ErrorCode

ANSWERS = 30
MANY_ANSWERS = 300
EARLY = 3  # answers before something happens in the middle of an episode
NONCES = (1, 2**32 - 1, 0)


def serve(answers: int = ANSWERS) -> Script:
    """Let the client in, answer it, then say that training has finished."""

    def script(talk: ClientTalk) -> None:
        talk.welcome()
        for _ in range(answers):
            talk.answer()
        talk.finish()

    return script


def written(writer: Writer) -> Script:
    """Serve as `serve` does, with messages encoded by `writer`."""

    def script(talk: ClientTalk) -> None:
        talk.writer = writer
        serve()(talk)

    return script


written_differently, with_more_fields = written(written_otherwise), written(with_unknown_fields)


def byte_by_byte(talk: ClientTalk) -> None:
    """Every frame in single bytes."""
    talk.line.one_by_one = True
    serve()(talk)


def joined(talk: ClientTalk) -> None:
    """Every answer in one packet with two pings before it."""
    talk.welcome()
    ping = rlx_pb2.ServerMessage(ping={"nonce": 5})
    for _ in range(ANSWERS):
        talk.answer(ping, ping)
    talk.finish()


def unasked_pongs(talk: ClientTalk) -> None:
    """A pong that the client did not ask for before each answer."""
    talk.welcome()
    for _ in range(ANSWERS):
        talk.answer(rlx_pb2.ServerMessage(pong={"nonce": 5}))
    talk.finish()


def pings(talk: ClientTalk) -> None:
    """A ping before each answer; the answer comes when the pong is there."""
    talk.welcome()
    for index in range(ANSWERS):
        ask = talk.expect(*ASKS)
        nonce = NONCES[index % len(NONCES)] if index < 2 * len(NONCES) else index
        talk.say(rlx_pb2.ServerMessage(ping={"nonce": nonce}))
        deadline, talk.line.deadline = talk.line.deadline, min(talk.line.deadline, talk.heartbeat_seconds)
        found = talk.expect(rlx.Pong).nonce
        talk.line.deadline = deadline
        if found != nonce:
            raise rlx.ProtocolError(rlx.ErrorCode.INVALID_VALUE, f"the pong to ping {nonce} has the nonce {found}")
        talk.reply(ask)
    talk.finish()


def slow(talk: ClientTalk) -> None:
    """Answers that take a second, with pings meanwhile; the client must not go on without one."""
    talk.welcome()
    for _ in range(EARLY):
        ask = talk.expect(*ASKS)
        for _ in range(2):
            talk.say(rlx_pb2.ServerMessage(ping={"nonce": 9}))
            until = time.monotonic() + 0.5
            deadline, talk.line.deadline = talk.line.deadline, 0.5
            try:
                while time.monotonic() < until:
                    talk.hear()  # an ask would break the protocol here, and the connection says so
            except Silent:
                pass
            finally:
                talk.line.deadline = deadline
        talk.reply(ask)
    talk.finish()


def on_first(script: Script) -> Script:
    """A script for the first connection only: whoever comes back is served."""

    @functools.wraps(script)
    def either(talk: ClientTalk) -> None:
        if talk.index > 0:
            serve(EARLY)(talk)
        else:
            script(talk)

    return either


def error(
    code: int, retryable: bool, *, wait: float = 0.0, answers: int = 0, sentence: str = "a check of conformance"
) -> Script:
    """An error on the first connection, after so many answers, or for the hello if `answers` is 0."""
    fields = {"code": code, "message": sentence, "retryable": retryable, "retry_after_seconds": wait}
    message = rlx_pb2.ServerMessage(error=fields)
    return _first(lambda talk: talk.last_word(encoded(message, talk.codec)), answers)


def golden_error(conversation: str) -> Script:
    """The error of a golden conversation, as the answer to the first hello."""
    return _first(lambda talk: talk.last_word(golden_message(conversation, "error", talk.codec)[0]), 0)


def _first(last: Callable[[ClientTalk], None], answers: int) -> Script:
    @on_first
    def script(talk: ClientTalk) -> None:
        if answers:
            talk.welcome()
            for _ in range(answers):
                talk.answer()
            talk.expect(*ASKS)
        else:
            talk.expect(rlx.Hello)
        last(talk)

    return script


@on_first
def refused_at_once(talk: ClientTalk) -> None:
    """A refusal before the hello is read, so in Protobuf."""
    error = {"code": ErrorCode.OVERLOADED, "message": "a check of conformance", "retryable": True}
    talk.last_word(encoded(rlx_pb2.ServerMessage(error=error), "protobuf"))


cut = _first(lambda talk: talk.last_word(), EARLY)
"""The first connection ends in the middle of an episode, without a word."""

server_bye = _first(
    lambda talk: talk.last_word(golden_message(f"metrics_ping_bye_{talk.codec}", "bye", talk.codec)[0]), EARLY
)
finished_at_once = _first(ClientTalk.finish, 0)
finished_in_between = _first(ClientTalk.finish, EARLY)


@on_first
def error_behind(talk: ClientTalk) -> None:
    """A retryable error in one packet with the answer before it."""
    talk.welcome()
    for _ in range(EARLY):
        talk.answer()
    error = {"code": ErrorCode.REBALANCING, "message": "a check of conformance", "retryable": True}
    talk.behind = encoded(rlx_pb2.ServerMessage(error=error), talk.codec)
    talk.answer()
    talk.last_word()


@on_first
def cut_between_episodes(talk: ClientTalk) -> None:
    """The connection ends instead of an answer to a step that ends an episode of a NEXT_STEP environment."""
    talk.welcome()
    if not talk.next_step.any():
        raise CannotSay("no environment says NEXT_STEP")
    for _ in range(MANY_ANSWERS):
        ask = talk.expect(*ASKS)
        if isinstance(ask, rlx.Step) and (ended_by(ask) & talk.next_step).any():
            talk.last_word()
            return
        talk.reply(ask)
    raise CannotSay(f"no step ended an episode in {MANY_ANSWERS} answers")


@on_first
def wrong_kind(talk: ClientTalk) -> None:
    """episode_returns where actions are due."""
    talk.welcome()
    ask = talk.expect(rlx.Init)
    n = len(ask.observation[0])
    talk.line.send(encoded(rlx_pb2.ServerMessage(episode_returns={"episode_return": [0.0] * n}), talk.codec))
    talk.watch(until_asked=True)


def mistake(conversation: Conversation) -> Script:
    """Return a script that makes the conversation's mistake on the first connection.

    A mistake behind a right message is in one packet with it, so both have arrived when the client sends next.
    """
    *entries, last = conversation.entries

    @on_first
    def script(talk: ClientTalk) -> None:
        ask: Any = None
        for entry in entries:
            if entry["from"] == "client":
                ask = _asked(talk, next(iter(entry["message"])))
            else:
                if entry is entries[-1]:
                    talk.behind = _mistaken(conversation, last, talk)
                if "welcome" in entry["message"]:
                    talk.let_in(ask)
                else:
                    talk.reply(ask)
        if entries[-1]["from"] == "client":
            talk.line.send(_mistaken(conversation, last, talk))
        talk.watch(until_asked=True)

    return script


def _asked(talk: ClientTalk, kind: str) -> Any:
    """Return the client's next hello, init or reset. Steps before a reset are answered."""
    if kind != "reset":
        return talk.expect(rlx.Hello if kind == "hello" else rlx.Init)
    for _ in range(MANY_ANSWERS):
        ask = talk.expect(*ASKS)
        if isinstance(ask, rlx.Reset):
            return ask
        talk.reply(ask)
    raise CannotSay(f"it sent no reset in {MANY_ANSWERS} answers")


def _mistaken(conversation: Conversation, entry: dict[str, Any], talk: ClientTalk) -> bytes:
    data = bytes.fromhex(entry["bytes"])
    if conversation.name.startswith("server_malformed_json_"):
        return _wrong_json(conversation.name.removeprefix("server_malformed_json_"), data, talk)
    if conversation.name.startswith("server_malformed_two_"):
        return _two_messages(talk)
    if conversation.name.startswith("server_malformed_text_"):
        return bytes.fromhex(golden(f"server_malformed_text_{talk.codec}").entries[-1]["bytes"])
    try:
        message = decoded(data[4:], "protobuf", rlx_pb2.ServerMessage)
    except Wrong:  # the other codec's bytes
        return data if talk.codec == "protobuf" else encoded(rlx_pb2.ServerMessage(ping={"nonce": 1}), "protobuf")
    if len(data) == 4:
        return data  # a length over the limit
    kind = message.WhichOneof("message")
    if kind is None:
        return data if talk.codec == "protobuf" else framed(b'{"fly":{"high":true}}')
    if kind == "actions":
        message = _wrong_actions(message.actions, entry["error"], talk)
    elif kind == "episode_returns":
        returns, n = message.episode_returns.episode_return, talk.hello.environments
        returns[:] = [returns[0]] * (n if len(returns) == 1 else n + 1)
    return encoded(message, talk.codec)


def _two_messages(talk: ClientTalk) -> bytes:
    """A ping, and actions that would be right by themselves, in one frame."""
    messages = rlx_pb2.ServerMessage(ping={"nonce": 1}), talk.actions()
    payloads = [encoded(message, talk.codec)[4:] for message in messages]
    return framed(b"".join(payloads) if talk.codec == "protobuf" else payloads[0][:-1] + b"," + payloads[1][1:])


def _wrong_json(mistake: str, data: bytes, talk: ClientTalk) -> bytes:
    """Return the golden bytes; if they hold actions, actions of the client's space with the same mistake."""
    if talk.codec != "json":
        raise CannotSay("it speaks Protobuf")
    if not data[4:].startswith(b'{"actions"'):
        return data
    tree = json_format.MessageToDict(talk.actions())
    leaf = tree["actions"]["action"][0]
    if mistake == "axis":
        leaf["shape"][0] = True
    elif mistake == "base64_line":
        leaf["data"] = leaf["data"][:4] + "\n" + leaf["data"][4:]
    else:
        right = leaf["data"]
        leaf["data"] = right.rstrip("=") if right.endswith("=") else right + "="
    return framed(json.dumps(tree).encode())


def _wrong_actions(golden: rlx_pb2.Actions, code: str, talk: ClientTalk) -> rlx_pb2.ServerMessage:
    """The mistake of actions of the vectors' space (one of three choices, N = 1) in the client's."""
    first = golden.action[0]
    leaves = legal(talk.hello.action_space, talk.hello.environments, np.random.default_rng(0))
    if len(golden.action) > 1:
        leaves = [*leaves, leaves[0]]
    elif first.dtype != rlx_pb2.DTYPE_INT64:
        leaves = of_another_dtype(leaves)
    elif len(first.shape) > 1:
        leaves = [leaves[0][..., None], *leaves[1:]]
    elif first.shape[0] != 1:
        leaves = [leaf.repeat(2, axis=0) for leaf in leaves]
    elif len(first.data) < 8:
        message = talk.actions(leaves)
        message.actions.action[0].data = message.actions.action[0].data[:-1]
        return message
    elif code == "ERROR_CODE_INVALID_VALUE":
        beyond = out_of_range(talk.hello.action_space, leaves)
        if beyond is None:
            raise CannotSay("every value of its element types is an action in the client's space")
        leaves = beyond
    return talk.actions(leaves)
