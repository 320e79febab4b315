"""The recorder of golden vectors: two connections of this project, and mistakes inserted between them."""

from __future__ import annotations

import struct
from dataclasses import fields, replace
from typing import Any

import numpy as np
from google.protobuf import json_format

from relaax.rlx import (
    Autoreset,
    Box,
    ClientConnection,
    Discrete,
    Error,
    ErrorCode,
    Hello,
    Limits,
    Message,
    RemoteProtocolError,
    Sender,
    ServerConnection,
    Welcome,
    rlx_pb2,
)
from relaax.rlx.wire.codecs import codec_named

from .rlx_messages import assert_same
from .rlx_vectors import message_to_json

LIMITS = Limits(
    max_frame_bytes=2**20,
    idle_timeout_seconds=60.0,
    heartbeat_seconds=5.0,
    max_metric_name_bytes=32,
    max_metric_names=2,
)
POINT = Box(-1, 1, (2,), np.float32)
HELLO = Hello(
    POINT,
    Discrete(3),
    client_name="vectors",
    client_version="1",
    environment="Point-v0",
    host="here",
)
WELCOME = Welcome("session-1", "da3c", LIMITS, server_version="1")
NAN = (np.nan, np.nan)


def hello(environments: int = 1, *autoreset: Autoreset, **fields: Any) -> tuple[str, Message]:
    """Return the entry of a client's hello, by default with the mode DISABLED."""
    return c(replace(HELLO, environments=environments, autoreset=autoreset or (Autoreset.DISABLED,), **fields))


def points(*rows: tuple[float, float]) -> list[np.ndarray]:
    return [np.array(rows, np.float32)]


def choices(*actions: int) -> list[np.ndarray]:
    return [np.array(actions, np.int64)]


def rewards(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def mask(*values: int) -> np.ndarray:
    return np.array(values, np.bool_)


# Sections of protocol/RLX.md for each vector. The first key that is a prefix of the vector's name applies.
SECTIONS = {
    "plain": "1, 7",
    "reset_truncated": "7, 8",
    "largest_rewards": "7",
    "reconnect": "6, 7",
    "same_step": "8",
    "next_step": "8",
    "mixed_habits": "8",
    "out_of_step_unsupported": "6",
    "out_of_step_partial": "6, 8",
    "out_of_step": "8",
    "chosen_actions_unsupported": "6",
    "chosen_actions": "8",
    "environment_parameters_unsupported": "6",
    "environment_parameters": "8",
    "nested_spaces": "5",
    "every_dtype": "4, 5",
    "key_order": "5",
    "metrics_ping_bye": "7, 11",
    "training_finished": "7",
    "refused_token": "6, 9",
    "overloaded": "9",
    "end_of_stream": "9",
    "unknown_fields": "3, 12",
    "malformed_empty": "2",
    "malformed_two_messages": "2, 3",
    "malformed_message_twice": "2, 3",
    "malformed_json_reward": "3, 7",
    "malformed_json_base64": "3, 4",
    "malformed": "3, 9",
    "frame_too_large": "2",
    "unsupported_version": "6, 12",
    "hello_deep_space": "5",
    "hello_many_leaves": "5",
    "hello_huge_leaf": "5",
    "hello_unknown": "12",
    "hello": "6",
    "space": "5",
    "step_nan_reward": "7",
    "step_large_reward": "7",
    "step_very_large_reward": "7",
    "step_large_return": "7, 8",
    "step_two_rewards": "7",
    "step_mask_length": "7",
    "step_infinite": "5",
    "step_no_leaf": "5",
    "step_two_leaves": "5",
    "step_dtype": "5",
    "step_shape": "5",
    "step_no_axis": "5",
    "step_action_not_chosen": "8",
    "step_action": "5, 8",
    "step_chosen": "8",
    "step_idle_length": "7, 8",
    "init_idle_length": "7, 8",
    "init_idle": "8",
    "step": "8",
    "reset_nan_reward": "7",
    "reset_large_reward": "7",
    "reset": "8",
    "metrics_long_name": "11",
    "metrics_many_names": "11",
    "metrics": "7",
    "array": "4",
    "unexpected": "10",
    "unknown_message": "12",
    "server_welcome_version": "6, 12",
    "server_welcome_limits": "6",
    "server_welcome_heartbeat": "11",
    "server_welcome_session_id": "6",
    "server_welcome_out_of_step": "6",
    "server_welcome_chosen_actions": "6",
    "server_welcome_environment_parameters": "6",
    "server_welcome_parameters": "6, 8",
    "server_parameters": "7, 8",
    "server_error_wait": "9",
    "server_returns": "7",
    "server_actions": "10",
    "server_action_data": "4",
    "server_action": "5",
    "server_unknown_message": "12",
    "server_frame_too_large": "2",
    "server_malformed_empty": "2",
    "server_malformed_two": "2, 3",
    "server_malformed": "3",
}


class Recording:
    """A recording of the messages between two connections of this project, and of inserted mistakes."""

    def __init__(self, name: str, description: str, codec: str = "protobuf") -> None:
        self.name, self.description = name, description
        self.client, self.server = ClientConnection(codec), ServerConnection(LIMITS)
        self.codec = codec_named(codec)
        self.entries: list[dict[str, Any]] = []

    def sends(self, *messages: tuple[str, Message]) -> Recording:
        for who, message in messages:
            sender = Sender(who)
            ours, theirs = self._ends(sender)
            data = ours.send(message)
            theirs.receive_data(data)
            assert_same(theirs.next_event(), message)
            self.entries.append({"from": who, "bytes": data.hex(), "message": message_to_json(message, sender)})
        return self

    def as_other_bytes(self, who: str, payload: bytes, message: Message) -> Recording:
        """Send `payload`, which encodes `message` differently from a connection of this version."""
        sender = Sender(who)
        ours, theirs = self._ends(sender)
        ours.send(message)
        theirs.receive_data(framed(payload))
        assert_same(theirs.next_event(), message)
        self.entries.append(
            {
                "from": who,
                "bytes": framed(payload).hex(),
                "message": message_to_json(message, sender),
                "other_bytes": True,
            }
        )
        return self

    def errs(self, who: str, data: bytes | Message, code: ErrorCode) -> Recording:
        """Send raw bytes or an invalid message. The receiver must detect the error; a server also answers with it."""
        _, theirs = self._ends(Sender(who))
        if not isinstance(data, bytes):
            data = framed(self.codec.encode(data, Sender(who)))
        theirs.receive_data(data)
        try:
            event = theirs.next_event()
        except RemoteProtocolError as error:
            assert error.code is code, (self.name, error.code, error.message)
            self.entries.append({"from": who, "bytes": data.hex(), "error": f"ERROR_CODE_{code.name}"})
            return self.sends(("server", Error.of(error))) if who == "client" else self
        raise AssertionError(f"{self.name}: {event}")

    def ends(self, who: str) -> Recording:
        self.entries.append({"from": who, "bytes": "", "end_of_stream": True})
        return self

    def _ends(self, sender: Sender) -> tuple[Any, Any]:
        return (self.client, self.server) if sender is Sender.CLIENT else (self.server, self.client)

    def as_json(self) -> dict[str, Any]:
        limits = rlx_pb2.Limits(**{name: getattr(LIMITS, name) for name in [f.name for f in fields(LIMITS)]})
        return {
            "name": self.name,
            "description": self.description,
            "section": next(section for name, section in SECTIONS.items() if self.name.startswith(name)),
            "codec": self.codec.name,
            "server_limits": json_format.MessageToDict(limits),
            "entries": self.entries,
        }


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def c(message: Message) -> tuple[str, Message]:
    return "client", message


def s(message: Message) -> tuple[str, Message]:
    return "server", message


def varint(number: int) -> bytes:
    data = b""
    while number > 127:
        data, number = data + bytes([number & 127 | 128]), number >> 7
    return data + bytes([number])


def message_bytes(message: Message, sender: Sender = Sender.CLIENT) -> bytes:
    return codec_named("protobuf").encode(message, sender)
