"""protocol/RLX.md agrees with the code: tables, limits and examples."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from relaax.metrics.names import CLIENTS, check_name
from relaax.rlx import (
    HANDSHAKE_FRAME_BYTES,
    NEED_DATA,
    Actions,
    Box,
    ClientConnection,
    ConnectionClosed,
    Dict,
    Discrete,
    EpisodeReturns,
    ErrorCode,
    Hello,
    Init,
    MultiBinary,
    MultiDiscrete,
    Ping,
    Pong,
    Reset,
    Sender,
    ServerConnection,
    Step,
    Tuple,
    Welcome,
    rlx_pb2,
    space_from_dict,
    space_to_dict,
)
from relaax.rlx.array_spaces import MAX_ELEMENTS
from relaax.rlx.handshake import MAX_TEXT_BYTES, MAX_TOKEN_BYTES
from relaax.rlx.messages import MAX_ENVIRONMENT_PARAMETERS, MAX_ENVIRONMENTS, MAX_FRAME_SKIP
from relaax.rlx.metric_names import normalize_name
from relaax.rlx.wire.arrays import DTYPES, MAX_AXES, read_array
from relaax.rlx.wire.codecs import codec_named
from relaax.rlx.wire.json_decoding import MAX_NESTING
from relaax.rlx.wire.space_encoding import MAX_DEPTH, MAX_LEAVES
from support.rlx_vector_files import JSON_CLIENT, SPECIFICATION, with_generated_parts
from support.rlx_vectors import message_to_json

TEXT = SPECIFICATION.read_text("utf-8")


def section(number: int) -> str:
    return TEXT.split(f"\n## {number}. ")[1].split("\n## ")[0]


def examples(kind: str) -> list[str]:
    return re.findall(rf"<!-- example: {kind} -->\n```\w*\n(.*?)```", TEXT, re.DOTALL)


def test_generated_parts_are_current() -> None:
    assert with_generated_parts(TEXT) == TEXT


def test_metric_name_examples_are_normalized() -> None:
    (block,) = examples("names of metrics")
    for name, form in json.loads(block).items():
        assert normalize_name(name) == normalize_name(form) == form
        check_name(f"{CLIENTS}{form}")


def test_dtype_table_is_current() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (\d+) \|", section(4), re.MULTILINE)
    expected = [(str(n), rlx_pb2.Dtype.Name(n), str(d.itemsize)) for n, d in DTYPES.items()]  # type: ignore[arg-type]
    assert rows == expected


def test_error_table_is_current() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (yes|no) \|", section(9), re.MULTILINE)
    assert rows == [(str(c.value), c.name, "yes" if c.retryable else "no") for c in ErrorCode if c]
    assert {f"ERROR_CODE_{c.name}": c.value for c in ErrorCode if c} == {
        name: number for name, number in rlx_pb2.ErrorCode.items() if number
    }


@pytest.mark.parametrize(
    ("number", "message"),
    [(6, "Hello"), (6, "Welcome"), (7, "ClientMessage"), (7, "ServerMessage"), (11, "Limits")],
)
def test_every_field_is_described(number: int, message: str) -> None:
    described = set(re.findall(r"`(\w+)`", section(number)))
    assert {field.name for field in getattr(rlx_pb2, message).DESCRIPTOR.fields} <= described


FIELD_ROW = re.compile(r"^\| `(\w+)` \| ([\w ]+)", re.MULTILINE)
MESSAGE_FIELD_ROW = re.compile(r"^\| `(\w+)\.(\w+)` \| ([\w ]+)", re.MULTILINE)
TYPES: dict[int, str] = {
    FieldDescriptor.TYPE_STRING: "text",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_ENUM: "enumerator",
    FieldDescriptor.TYPE_MESSAGE: "message",
}
LISTS = {
    "bool": "mask",
    "double": "numbers",
    "enumerator": "list of enumerators",
    "text": "list of text",
    "uint32": "list of uint32",
}


def written_type(field: Any) -> str:
    message = "" if field.message_type is None else field.message_type.name
    if message == "Array":
        return "leaves"
    if message == "Space":
        return "space"
    # Only lists have `append`.
    if hasattr(getattr(field.containing_type._concrete_class(), field.name), "append"):
        return f"list of {message}" if message else LISTS[TYPES[field.type]]
    return TYPES[field.type]


def fields_of(descriptor: Any) -> list[tuple[str, str]]:
    return [(field.name, written_type(field)) for field in descriptor.fields]


def test_field_tables_are_current() -> None:
    hello, welcome, limits = (m.DESCRIPTOR for m in (rlx_pb2.Hello, rlx_pb2.Welcome, rlx_pb2.Limits))
    found = [tuple(part.strip() for part in row) for row in FIELD_ROW.findall(section(6))]
    assert found == fields_of(hello) + fields_of(welcome)
    assert [tuple(part.strip() for part in row) for row in FIELD_ROW.findall(section(11))] == fields_of(limits)
    described: dict[str, list[tuple[str, str]]] = {}
    for message, name, kind in MESSAGE_FIELD_ROW.findall(section(7)):
        described.setdefault(message, []).append((name, kind.strip()))
    expected = {
        "Episode": fields_of(rlx_pb2.Episode.DESCRIPTOR),
        "Scalar": fields_of(rlx_pb2.Metrics.Scalar.DESCRIPTOR),
    }
    for envelope in (rlx_pb2.ClientMessage, rlx_pb2.ServerMessage):
        for field in envelope.DESCRIPTOR.fields:
            if field.message_type not in (hello, welcome):
                expected[field.name] = fields_of(field.message_type)
    assert described == expected


def test_autoreset_and_mode_names_are_listed() -> None:
    for kind in (rlx_pb2.Autoreset, rlx_pb2.Mode):
        assert all(f"`{name}`" in section(6) for name, number in kind.items() if number)


def test_json_space_examples_are_valid() -> None:
    (block,) = examples("spaces")
    spaces = [space_from_dict(json.loads(line)) for line in block.splitlines()]
    assert {type(space) for space in spaces} == {Box, Discrete, MultiDiscrete, MultiBinary, Tuple, Dict}
    for line, space in zip(block.splitlines(), spaces, strict=True):
        assert space_from_dict(space_to_dict(space)) == space
        kind, fields = next(iter(json.loads(line).items()))
        assert set(space_to_dict(space)[kind]) == set(fields)


def test_json_action_example_is_valid() -> None:
    (example,) = re.findall(r"`(\{\"dtype\".*?\})`", section(5))
    leaf = read_array(json_format.Parse(example, rlx_pb2.Array()))
    assert (leaf.dtype.name, leaf.tolist()) == ("int64", [2])


def test_limits_in_the_text_are_current() -> None:
    assert f"**{HANDSHAKE_FRAME_BYTES:,}** bytes" in section(2)
    assert f"at most {MAX_AXES + 1} axes" in section(4)
    assert f"at most {MAX_AXES} axes and at most 2³¹ − 1 elements" in section(5)
    assert MAX_ELEMENTS == 2**31 - 1
    assert f"at most {MAX_LEAVES} leaves, and is nested at most {MAX_DEPTH} deep" in section(5)
    assert f"At most {MAX_TOKEN_BYTES:,} bytes" in section(6)
    assert f"at most {MAX_TEXT_BYTES} bytes" in section(6)
    assert f"N, 1 to {MAX_ENVIRONMENTS:,} |" in section(6)
    assert f"at most {MAX_FRAME_SKIP:,}; 0 counts as 1" in section(6)
    assert f"at most {MAX_ENVIRONMENT_PARAMETERS} (else" in section(6)
    assert f"more than {MAX_NESTING} deep" in section(3)


def test_byte_examples_are_a_valid_conversation() -> None:
    client, server = ClientConnection(), ServerConnection()
    blocks = re.findall(r"<!-- example: (client|server) -->\n```\n(.*?)```", TEXT, re.DOTALL)
    seen = []
    for role, block in blocks:
        data = bytes.fromhex("".join(line.split("|")[0] for line in block.splitlines()))
        sender, receiver = (client, server) if role == "client" else (server, client)
        receiver.receive_data(data)
        message = receiver.next_event()
        assert receiver.next_event() is NEED_DATA
        assert sender.send(message) == data  # type: ignore[arg-type]
        seen.append(type(message).__name__)
    assert seen == ["Hello", "Welcome", "Init", "Actions", "Step"]


def test_one_environment_example_is_a_valid_conversation() -> None:
    client, server = ClientConnection("json"), ServerConnection()
    (block,) = examples("one environment")
    names = []
    for line in block.splitlines():
        sender, receiver = (client, server) if line.startswith("> ") else (server, client)
        payload = line[2:].encode()
        receiver.receive_data(struct.pack(">I", len(payload)) + payload)
        message = receiver.next_event()
        sender.send(message)  # type: ignore[arg-type]
        names.append(type(message).__name__)
        assert json.loads(payload).keys() == {names[-1][0].lower() + names[-1][1:]}
    assert " ".join(names) == "Hello Welcome Init Actions Step Actions Reset EpisodeReturns Bye"


@pytest.mark.parametrize("sender", Sender)
def test_json_message_examples_round_trip(sender: Sender) -> None:
    """Each example is decoded and encoded to the same JSON."""
    (block,) = examples(f"{sender.value} messages")
    codec, seen = codec_named("json"), set()
    for line in block.splitlines():
        message = codec.decode(line.encode(), sender)
        assert message_to_json(message, sender) == json.loads(line)
        seen |= json.loads(line).keys()
    envelope = rlx_pb2.ClientMessage if sender is Sender.CLIENT else rlx_pb2.ServerMessage
    kinds = {field.json_name for field in envelope.DESCRIPTOR.fields}
    assert kinds - seen == ({"hello", "init"} if sender is Sender.CLIENT else {"ping", "pong", "bye"}), (
        "shown elsewhere"
    )


def test_example_client_plays_two_episodes() -> None:
    """The example client plays against a server that sends the action "right", and pings."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        thread = threading.Thread(target=serve_one, args=(listener,))
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-W", "error", str(JSON_CLIENT), address, "2"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        thread.join(timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "10.0\n10.0\n", "")


def serve_one(listener: socket.socket) -> None:
    total = 0.0
    connection = ServerConnection()
    wire, _ = listener.accept()
    with wire:
        wire.settimeout(30)
        while True:
            event = connection.next_event()
            if event is NEED_DATA:
                connection.receive_data(wire.recv(65536))
            elif isinstance(event, ConnectionClosed):
                return
            elif isinstance(event, Hello):
                wire.sendall(connection.send(Welcome("s1", "right")))
            elif isinstance(event, (Init, Step)):
                total = 0.0 if isinstance(event, Init) else total + event.reward[0]
                wire.sendall(connection.send(Ping(3)))
                wire.sendall(connection.send(Actions([np.array([2])])))
            elif isinstance(event, Reset):
                wire.sendall(connection.send(EpisodeReturns(np.array([total + event.reward[0]]))))
            elif isinstance(event, Pong):
                assert event.nonce == 3
