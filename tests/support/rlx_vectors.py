"""Replay of the golden vectors with this project's connections. See protocol/vectors/README.md."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format

from relaax.conformance.vectors import FOLDER, Conversation, load
from relaax.rlx import (
    NEED_DATA,
    ClientConnection,
    ConnectionClosed,
    ErrorCode,
    Message,
    RemoteProtocolError,
    Sender,
    ServerConnection,
    State,
    rlx_pb2,
)
from relaax.rlx.wire.decoding import from_wire
from relaax.rlx.wire.encoding import to_wire

from .rlx_messages import assert_same

__all__ = ["FOLDER", "Conversation", "load", "message_from_json", "message_to_json", "play", "refused_openings"]


def message_to_json(message: Message, sender: Sender) -> dict[str, Any]:
    """Return a message in the JSON form of the files."""
    tree: dict[str, Any] = json_format.MessageToDict(to_wire(message, sender))
    return tree


def message_from_json(tree: dict[str, Any], sender: Sender) -> Message:
    """Return the message of a JSON form, the inverse of `message_to_json`."""
    envelope: Any = rlx_pb2.ClientMessage() if sender is Sender.CLIENT else rlx_pb2.ServerMessage()
    return from_wire(json_format.ParseDict(tree, envelope))


def play(conversation: Conversation, role: Sender) -> None:
    """Run this project's connection in one role, with the bytes of the file in the other role."""
    connection = (
        ClientConnection(conversation.codec) if role is Sender.CLIENT else ServerConnection(conversation.limits)
    )
    for entry in conversation.entries:
        speaker = Sender(entry["from"])
        if speaker is role:
            _speak(connection, conversation.codec, entry, speaker)
        else:
            _listen(connection, entry, speaker)


def _speak(connection: ClientConnection | ServerConnection, codec: str, entry: dict[str, Any], speaker: Sender) -> None:
    if "message" not in entry:
        return  # the end of the stream, or a mistake that a connection of this project cannot make
    data = connection.send(message_from_json(entry["message"], speaker))
    expected = bytes.fromhex(entry["bytes"])
    if entry.get("other_bytes"):
        return  # valid, but not the encoding of this version
    if codec == "json":
        assert json.loads(data[4:]) == json.loads(expected[4:])
        assert int.from_bytes(data[:4], "big") == len(data) - 4
    else:
        assert data.hex() == expected.hex()


def _listen(connection: ClientConnection | ServerConnection, entry: dict[str, Any], speaker: Sender) -> None:
    connection.receive_data(bytes.fromhex(entry["bytes"]))
    if "error" in entry:
        try:
            event = connection.next_event()
        except RemoteProtocolError as error:
            assert f"ERROR_CODE_{error.code.name}" == entry["error"], error.message
            assert error.message
            assert connection.state is State.ERROR
            return
        raise AssertionError(f"expected {entry['error']}, received {event}")
    if entry.get("end_of_stream"):
        assert isinstance(connection.next_event(), ConnectionClosed)
        return
    assert_same(connection.next_event(), message_from_json(entry["message"], speaker))
    assert connection.next_event() is NEED_DATA or connection.state is State.CLOSED


def refused_openings() -> list[tuple[str, bytes, ErrorCode]]:
    """Return the invalid first messages of clients, for tests of a real server: name, all bytes, and error code."""
    found = []
    for conversation in load():
        data = b""
        for entry in conversation.entries:
            if entry["from"] != "client" or not entry.get("bytes"):
                break
            data += bytes.fromhex(entry["bytes"])
            if "error" in entry:
                code = ErrorCode[entry["error"].removeprefix("ERROR_CODE_")]
                found.append((conversation.name, data, code))
                break
    return found
