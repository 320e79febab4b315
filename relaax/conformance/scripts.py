"""Ways in which a server may behave: what is done on each connection of a client."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np

from relaax import rlx
from relaax.conformance.client_talk import ASKS, CannotSay, ClientTalk, Writer, golden_message
from relaax.conformance.host import Script
from relaax.conformance.reencoding import with_unknown_fields, written_otherwise
from relaax.conformance.values import legal, of_another_dtype, out_of_range
from relaax.conformance.vectors import Conversation
from relaax.conformance.wire import Silent, Wrong, decoded, encoded, framed
from relaax.rlx import rlx_pb2

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


def pings(talk: ClientTalk) -> None:
    """A ping before each answer; the answer comes when the pong is there."""
    talk.welcome()
    for index in range(ANSWERS):
        ask = talk.expect(*ASKS.__args__)
        nonce = NONCES[index % len(NONCES)] if index < 2 * len(NONCES) else index
        talk.say(rlx_pb2.ServerMessage(ping={"nonce": nonce}))
        found = talk.expect(rlx.Pong).nonce
        if found != nonce:
            raise rlx.ProtocolError(rlx.ErrorCode.INVALID_VALUE, f"the pong to ping {nonce} has the nonce {found}")
        talk.reply(ask)
    talk.finish()


def slow(talk: ClientTalk) -> None:
    """Answers that take a second, with pings meanwhile; the client must not go on without one."""
    talk.welcome()
    for _ in range(EARLY):
        ask = talk.expect(*ASKS.__args__)
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
            talk.expect(*ASKS.__args__)
        else:
            talk.expect(rlx.Hello)
        last(talk)

    return script


cut = _first(lambda talk: talk.last_word(), EARLY)
"""The first connection ends in the middle of an episode, without a word."""

server_bye = _first(
    lambda talk: talk.last_word(golden_message(f"metrics_ping_bye_{talk.codec}", "bye", talk.codec)[0]), EARLY
)
finished_at_once = _first(ClientTalk.finish, 0)
finished_in_between = _first(ClientTalk.finish, EARLY)


@on_first
def wrong_kind(talk: ClientTalk) -> None:
    """episode_returns where actions are due."""
    talk.welcome()
    ask = talk.expect(rlx.Init)
    n = len(ask.observation[0])
    talk.line.send(encoded(rlx_pb2.ServerMessage(episode_returns={"episode_return": [0.0] * n}), talk.codec))
    talk.watch(until_asked=True)


def mistake(conversation: Conversation) -> Script:
    """A golden mistake of the server on the first connection, in the client's codec and spaces."""

    @on_first
    def script(talk: ClientTalk) -> None:
        for entry in conversation.entries:
            if entry["from"] == "client":
                talk.expect(rlx.Hello if "hello" in entry["message"] else rlx.Init)
            elif "message" in entry:
                if "welcome" in entry["message"]:
                    talk.say_golden(conversation.name, "welcome")
            else:
                talk.line.send(_mistaken(conversation, entry, talk))
                talk.watch(until_asked=True)

    return script


def _mistaken(conversation: Conversation, entry: dict[str, str], talk: ClientTalk) -> bytes:
    data = bytes.fromhex(entry["bytes"])
    if conversation.name.startswith("server_malformed_two_"):
        return _two_messages(talk)
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
        message = _wrong_actions(message.actions.action[0], entry["error"], talk)
    return encoded(message, talk.codec)


def _two_messages(talk: ClientTalk) -> bytes:
    """A ping, and actions that would be right by themselves, in one frame."""
    messages = rlx_pb2.ServerMessage(ping={"nonce": 1}), talk.actions()
    payloads = [encoded(message, talk.codec)[4:] for message in messages]
    return framed(b"".join(payloads) if talk.codec == "protobuf" else payloads[0][:-1] + b"," + payloads[1][1:])


def _wrong_actions(golden: rlx_pb2.Array, code: str, talk: ClientTalk) -> rlx_pb2.ServerMessage:
    """The mistake of actions of the vectors' space (one of three choices, N = 1) in the client's."""
    leaves = legal(talk.hello.action_space, talk.hello.environments, np.random.default_rng(0))
    if golden.dtype != rlx_pb2.DTYPE_INT64:
        leaves = of_another_dtype(leaves)
    elif golden.shape[0] != 1:
        leaves = [leaf.repeat(2, axis=0) for leaf in leaves]
    elif code == "ERROR_CODE_INVALID_VALUE":
        beyond = out_of_range(talk.hello.action_space, leaves)
        if beyond is None:
            raise CannotSay("every value of its element types is an action in the client's space")
        leaves = beyond
    return talk.actions(leaves)
