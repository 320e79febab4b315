"""Golden mistakes of the server, made in the codec and the spaces of the client under test."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from google.protobuf import json_format

from relaax import rlx
from relaax.conformance.client_talk import ASKS, CannotSay, ClientTalk
from relaax.conformance.host import Script
from relaax.conformance.scripts import MANY_ANSWERS, on_first
from relaax.conformance.values import legal, of_another_dtype, out_of_range
from relaax.conformance.vectors import Conversation, golden
from relaax.conformance.wire import Wrong, decoded, encoded, framed
from relaax.rlx import rlx_pb2


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
