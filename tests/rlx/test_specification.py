"""protocol/RLX.md says what the code does."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from relaax.rlx import (
    HANDSHAKE_FRAME_BYTES,
    NEED_DATA,
    Actions,
    ClientConnection,
    ConnectionClosed,
    EpisodeReturns,
    ErrorCode,
    Hello,
    Init,
    Ping,
    Pong,
    Reset,
    Sender,
    ServerConnection,
    Step,
    Welcome,
    rlx_pb2,
)
from relaax.rlx.arrays import DTYPES, MAX_AXES
from relaax.rlx.elementary import MAX_ELEMENTS
from relaax.rlx.handshake import MAX_TEXT_BYTES, MAX_TOKEN_BYTES
from relaax.rlx.space_wire import MAX_DEPTH, MAX_LEAVES
from support.rlx_vector_files import SPECIFICATION, with_generated_parts
from support.rlx_vectors import message_to_json

TEXT = SPECIFICATION.read_text("utf-8")


def section(number: int) -> str:
    return TEXT.split(f"\n## {number}. ")[1].split("\n## ")[0]


def examples(kind: str) -> list[str]:
    return re.findall(rf"<!-- example: {kind} -->\n```\w*\n(.*?)```", TEXT, re.DOTALL)


def test_generated_parts_are_current() -> None:
    assert with_generated_parts(TEXT) == TEXT


def test_the_table_of_dtypes() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (\d+) \|", section(4), re.MULTILINE)
    expected = [(str(n), rlx_pb2.Dtype.Name(n), str(d.itemsize)) for n, d in DTYPES.items()]  # type: ignore[arg-type]
    assert rows == expected


def test_the_table_of_errors() -> None:
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


def test_numbers_of_the_text() -> None:
    assert f"**{HANDSHAKE_FRAME_BYTES:,}** bytes" in section(2)
    assert f"at most {MAX_AXES + 1} axes" in section(4)
    assert f"at most {MAX_AXES} axes and at most 2³¹ − 1 elements" in section(5)
    assert MAX_ELEMENTS == 2**31 - 1
    assert f"at most {MAX_LEAVES} leaves, and is nested at most {MAX_DEPTH} deep" in section(5)
    assert f"At most {MAX_TOKEN_BYTES:,} bytes" in section(6)
    assert f"at most {MAX_TEXT_BYTES} bytes" in section(6)


def test_the_conversation_in_bytes() -> None:
    client, server = ClientConnection(), ServerConnection()
    blocks = re.findall(r"<!-- example: (client|server) -->\n```\n(.*?)```", TEXT, re.DOTALL)
    seen = []
    for who, block in blocks:
        data = bytes.fromhex("".join(line.split("|")[0] for line in block.splitlines()))
        ours, theirs = (client, server) if who == "client" else (server, client)
        theirs.receive_data(data)
        message = theirs.next_event()
        assert theirs.next_event() is NEED_DATA
        assert ours.send(message) == data  # type: ignore[arg-type]
        seen.append(type(message).__name__)
    assert seen == ["Hello", "Welcome", "Init", "Actions", "Step"]


def test_the_conversation_in_json() -> None:
    server = ServerConnection()
    (block,) = examples("client json")
    lengths = re.search(r"`([0-9a-f ]{11})` and `([0-9a-f ]{11})`", section(13))
    assert lengths is not None
    for line, header in zip(block.splitlines(), lengths.groups(), strict=True):
        server.receive_data(bytes.fromhex(header) + line.encode())
        message = server.next_event()
        assert message_to_json(message, Sender.CLIENT) == json.loads(line)  # type: ignore[arg-type]
        if server.welcome is None:
            server.send(Welcome("s1", "da3c"))


def test_the_script_plays(tmp_path: Path) -> None:
    """The client of the specification, run as it stands, against a server that goes right and pings."""
    (script,) = examples("script")
    (tmp_path / "client.py").write_text(script, "utf-8")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        thread = threading.Thread(target=serve_one, args=(listener,))
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-W", "error", str(tmp_path / "client.py"), address, "2"]
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
