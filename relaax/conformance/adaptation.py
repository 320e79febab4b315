"""A golden conversation adapted to the spaces, the token, the codec and the limits of the server under test.

Messages that need no change are sent as the bytes of the file. A mistake remains the same mistake in other spaces.
"""

from __future__ import annotations

import json
import math
import ssl
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import json_format

from relaax.conformance.values import Array, random_leaves, wire_array, with_illegal_value, with_wrong_dtype
from relaax.conformance.vectors import Conversation, golden
from relaax.conformance.wire import RuleViolation, decoded, encoded, framed
from relaax.rlx import Space, rlx_pb2, space_from_dict, space_to_dict
from relaax.rlx.wire.arrays import DTYPES
from relaax.rlx.wire.encoding import CAPABILITIES

_UNASKED = {"_idle_unasked": "out_of_step", "_chosen_unasked": "chosen_actions"}
_DIGITS = 1000  # an integer in an unknown field is cut to this length; Python refuses integers of over 4,300 digits


class ImpossibleMistake(Exception):
    """A mistake that does not exist in this codec or these spaces. The message is a sentence."""


@dataclass(frozen=True)
class Settings:
    """The user's description of the server under test. Either both spaces are given or neither."""

    observation_space: Space | None = None
    action_space: Space | None = None
    token: str = ""
    exploit: bool = False
    codec: str | None = None
    deadline: float = 20.0
    tls: ssl.SSLContext | None = None


class AdaptedConversation:
    """The client's messages of one golden conversation, for the server under test."""

    def __init__(self, conversation: Conversation, settings: Settings) -> None:
        self.conversation = conversation
        first = conversation.entries[0]
        # A server detects the codec with the fifth byte. Before that, it answers in Protobuf.
        undecided = ("error" in first and len(bytes.fromhex(first["bytes"])) <= 4) or "http" in conversation.name
        self.codec = conversation.codec if undecided else settings.codec or conversation.codec
        self.settings = settings
        hello = _hello_of(conversation)
        plain = hello is not None and _spaces_of(hello) == _spaces_of(_hello_of(golden("plain_protobuf")))
        self._own = settings.observation_space is not None and plain
        if self._own:
            assert settings.observation_space is not None and settings.action_space is not None
            self.spaces = settings.observation_space, settings.action_space
        elif hello is not None:
            self.spaces = space_from_dict(hello["observationSpace"]), space_from_dict(hello["actionSpace"])
        self.environments = int(hello["environments"]) if hello else 1
        asked = json_format.ParseDict(hello or {}, rlx_pb2.Hello())
        self.asks = [capability for capability in CAPABILITIES if getattr(asked, capability)]
        """The capabilities that the hello asks for."""
        self.used_unasked = next((c for end, c in _UNASKED.items() if conversation.name.endswith(end)), None)
        """The capability that a mistake uses although the hello did not ask for it, or None."""
        self.wrong_token = conversation.name == "refused_token"

    @property
    def is_opening(self) -> bool:
        """Whether the conversation is a mistake before the hello, which does not depend on spaces."""
        return "error" in self.conversation.entries[0]

    def frame(self, entry: dict[str, Any], limits: rlx_pb2.Limits | None) -> bytes:
        """Return the bytes to send for an entry of the client. `limits`: those of the welcome; None before it.

        Raises ImpossibleMistake.
        """
        data = bytes.fromhex(entry["bytes"])
        if entry.get("error") == "ERROR_CODE_FRAME_TOO_LARGE":
            if limits is not None and limits.max_frame_bytes >= 2**32 - 1:
                raise ImpossibleMistake("the server allows frames of any length, so none is too large")
            return data if limits is None else struct.pack(">I", limits.max_frame_bytes + 1)
        verbatim = self.codec == self.conversation.codec
        malformed = entry.get("error") == "ERROR_CODE_MALFORMED"
        if verbatim and (self.is_opening or malformed):
            return data
        try:
            if malformed:
                raise RuleViolation("a mistake in the bytes cannot be decoded")
            if "message" in entry:
                message = json_format.ParseDict(entry["message"], rlx_pb2.ClientMessage())
            else:
                message = decoded(data[4:], self.conversation.codec, rlx_pb2.ClientMessage)
        except RuleViolation:
            if verbatim:
                return data
            raise ImpossibleMistake(f"this mistake does not exist in {self.codec}") from None
        kind = message.WhichOneof("message")
        if kind is None:
            return data if verbatim else framed(b'{"fly":{"high":true}}')
        changed = False if self.is_opening else self._adapt(message, kind, "error" in entry, limits)
        if verbatim and not changed:
            return data
        if entry.get("other_bytes") and self.codec == "json":
            return _edit_hello(data, message)
        return encoded(message, self.codec)

    def _adapt(self, message: Any, kind: str, is_mistake: bool, limits: rlx_pb2.Limits | None) -> bool:
        """Adapt a message to the server; return whether it changed."""
        before = message.SerializeToString(deterministic=True)
        if kind == "hello":
            self._adapt_hello(message.hello)
        elif kind == "metrics" and is_mistake and limits is not None:
            self._exceed_limits(message.metrics, limits)
        elif kind in ("init", "step", "reset") and self._own:
            body = getattr(message, kind)
            for field in ("observation", "final_observation"):
                if field in body.DESCRIPTOR.fields_by_name and getattr(body, field):
                    arrays = self._translate_leaves(list(getattr(body, field)), is_mistake)
                    getattr(body, field).clear()
                    getattr(body, field).extend(arrays)
            if kind != "init" and body.action:
                arrays = self._translate_actions(list(body.action), np.array(body.chosen, np.bool_))
                del body.action[:]
                body.action.extend(arrays)
        return bool(before != message.SerializeToString(deterministic=True))

    def _adapt_hello(self, hello: Any) -> None:
        if self._own:
            for field, space in zip(("observation_space", "action_space"), self.spaces, strict=True):
                getattr(hello, field).CopyFrom(json_format.ParseDict(space_to_dict(space), rlx_pb2.Space()))
        if not self.wrong_token:
            hello.token = self.settings.token
        if self.settings.exploit:
            hello.mode = rlx_pb2.MODE_EXPLOIT

    def _exceed_limits(self, metrics: Any, limits: rlx_pb2.Limits) -> None:
        """Replace scalars that exceed the limits of the vectors by scalars that exceed those of the server."""
        theirs = self.conversation.limits
        scalars = [(scalar.name, scalar.value) for scalar in metrics.scalars]
        if any(len(name.encode()) > theirs.max_metric_name_bytes for name, _ in scalars):
            scalars = [("a" * (limits.max_metric_name_bytes + 1), 1.0)]
        elif len(scalars) > theirs.max_metric_names:
            scalars = [(f"m{i}", 1.0) for i in range(limits.max_metric_names + 1)]
        del metrics.scalars[:]
        for name, value in scalars:
            metrics.scalars.add(name=name, value=value)
        if metrics.ByteSize() > min(limits.max_frame_bytes, 2**24) // 2:
            raise ImpossibleMistake("metrics above the server's limit do not fit a frame")

    def _translate_leaves(self, arrays: list[Any], is_mistake: bool) -> list[Any]:
        """Return leaves of the server's observation space with the mistake of `arrays`, the leaves in the file.

        Void rows, which are NaN in the file, are no mistake.
        """
        own = random_leaves(self.spaces[0], self.environments, np.random.default_rng(0))
        extra = own[:1] * (len(arrays) - 1)
        array = arrays[0]
        dtype, shape = DTYPES.get(array.dtype), list(array.shape)
        if dtype is None or len(array.data) != math.prod(shape) * dtype.itemsize:
            return [array, *map(wire_array, own[1:])]  # the array is invalid in every space
        if dtype != np.float32:
            own = with_wrong_dtype(own)
        elif shape != [self.environments, 2]:
            own[0] = _reshape(own[0], fewer_axes=len(shape) < 2)
        elif not (rows := np.isfinite(np.frombuffer(array.data, dtype).reshape(shape)).all(axis=1)).all():
            place = next((i for i, leaf in enumerate(own) if leaf.dtype.kind == "f"), None)
            if place is not None:
                own[place][~rows] = np.nan
            elif is_mistake:
                raise ImpossibleMistake("these observations have no element that can be NaN or infinite")
        return [wire_array(leaf) for leaf in own + extra]

    def _translate_actions(self, arrays: list[Any], chosen: Array) -> list[Any]:
        """Return actions of the server's space with the mistake of `arrays`, actions of Discrete(3) in the file.

        `chosen`: bool [N]. Other rows are random.
        """
        space, first = self.spaces[1], arrays[0]
        own = random_leaves(space, self.environments, np.random.default_rng(1))
        if len(arrays) > 1:
            own = [*own, own[0]]
        elif first.dtype != rlx_pb2.DTYPE_INT64:
            own = with_wrong_dtype(own)
        elif list(first.shape) != [self.environments]:
            own = [leaf.repeat(2, axis=0) for leaf in own]
        elif len(chosen) == self.environments and not set(np.frombuffer(first.data, "<i8")[chosen]) <= {0, 1, 2}:
            illegal = with_illegal_value(space, own)
            if illegal is None:
                raise ImpossibleMistake("every value of the dtypes is an action in the server's space")
            own = illegal
        return [wire_array(leaf) for leaf in own]


def _edit_hello(data: bytes, message: Any) -> bytes:
    """Return a JSON hello with the adapted fields. Unusual names and unknown fields of the original are kept."""
    tree = json.loads(data[4:], parse_int=lambda digits: int(digits[:_DIGITS]))
    hello = json_format.MessageToDict(message.hello)
    for field in ("observationSpace", "actionSpace", "token", "mode"):
        tree["hello"].pop(field, None)
        if field in hello:
            tree["hello"][field] = hello[field]
    return framed(json.dumps(tree, indent=1).encode())


def _reshape(leaf: Array, fewer_axes: bool) -> Array:
    """Return the leaf without the axis N, or with a longer last axis, or with one more axis."""
    if fewer_axes:
        return leaf[0] if leaf.ndim > 1 else leaf.reshape(())
    return np.concatenate([leaf, leaf[..., :1]], axis=-1) if leaf.ndim > 1 else leaf[..., None].repeat(2, axis=-1)


def _hello_of(conversation: Conversation) -> dict[str, Any] | None:
    try:
        hello: dict[str, Any] = conversation.entry("client", "hello")["message"]["hello"]
    except KeyError:
        return None
    return hello


def _spaces_of(hello: dict[str, Any] | None) -> list[Any]:
    return [] if hello is None else [hello["observationSpace"], hello["actionSpace"]]
