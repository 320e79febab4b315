"""Play the golden conversations with a client of protocol/clients, through its program `play`.

protocol/clients/README.md describes the input and the output of `play`. The JSON conversations are played in Protobuf,
the codec of these clients.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from relaax.conformance.vectors import Conversation, golden, load
from relaax.conformance.wire import FrameStream, StreamEnded, decoded, encoded, kind_of
from relaax.rlx import rlx_pb2
from relaax.rlx.errors import ErrorCode
from relaax.rlx.metric_names import normalize_name
from relaax.rlx.wire.encoding import CAPABILITIES

PATIENCE = 60.0
_ASKS = ("init", "step", "reset")
DIFFERS = ("client_name", "client_version")  # fields that differ between clients


class Different(AssertionError):
    """A message that the client sent or received differs from the conversation."""


def playable() -> list[Conversation]:
    """Return the conversations, except those with a mistake that exists in JSON only."""
    return [c for c in load() if not (c.file == "server_mistakes" and c.codec == "json")]


class Player:
    """A running program `play`. Use it as a context manager."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def play(self, conversation: Conversation, one_by_one: bool) -> None:
        """Play one conversation, the server's bytes whole or one by one. Raises Different."""
        entries = _playable_entries(conversation)
        too_long = threading.Timer(PATIENCE, self._process.kill)
        too_long.start()
        try:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                script = [*commands(entries, listener.getsockname()[1]), "end"]
                assert self._process.stdin is not None
                self._process.stdin.write("".join(f"{one}\n" for one in script))
                self._process.stdin.flush()
                with self._accept(listener) as sock:
                    _serve(FrameStream(sock, PATIENCE, one_by_one), entries)
            printed, expected = self._output(), _expected_output(entries)
        finally:
            too_long.cancel()
        if len(printed) != len(expected) or not all(map(_agree, printed, expected)):
            raise Different(f"the client printed {printed}; expected {expected}")

    def _accept(self, listener: socket.socket) -> socket.socket:
        listener.settimeout(0.05)
        while self._process.poll() is None:
            with contextlib.suppress(TimeoutError):
                return listener.accept()[0]
        raise Different(f"the client did not connect: {' '.join(self._process.communicate())}")

    def _output(self) -> list[str]:
        assert self._process.stdout is not None
        lines = iter(self._process.stdout.readline, "end\n")
        return [line.rstrip("\n") for line in lines if line or self._raise_ended()]

    def _raise_ended(self) -> bool:
        raise Different(f"the client ended with exit code {self._process.wait()}: {self._process.communicate()[1]}")


def _playable_entries(conversation: Conversation) -> list[dict[str, Any]]:
    """Return the entries that these clients can play. A mistake of the client is replaced by a ping."""
    entries: list[dict[str, Any]] = []
    state = ""  # the last message that is not a ping or metrics
    for entry in conversation.entries:
        kind = next(iter(entry.get("message", {"": None})))
        if entry["from"] == "client" and "error" in entry:
            if not entries:
                entries.append(golden("plain_protobuf").entries[0])
            elif state in ("init", "step", "reset", "hello"):
                pass  # the client is already waiting
            else:
                entries.append({"from": "client", "message": {"ping": {}}})
        elif "end_of_stream" in entry and entry["from"] == "client":
            break
        elif not (entry["from"] == "client" and kind == "metrics" and state in ("init", "step", "reset")):
            entries.append(entry)
        if kind not in ("ping", "pong", "metrics"):
            state = kind
    last = entries[-1]
    is_unsolicited = (
        last["from"] == "server" and entries[-2]["from"] == "server" and "ping" not in entries[-2].get("message", {})
    )
    if is_unsolicited:
        entries.insert(len(entries), {"from": "client", "message": {"ping": {}}, "late": True})
    return entries


def commands(entries: Sequence[dict[str, Any]], port: int) -> list[str]:
    """Return the commands for the client, one line each: of `asked` if an entry has it, else of `message`."""
    lines = []
    for entry in entries:
        if entry["from"] == "server":
            continue
        message = json_format.ParseDict(entry.get("asked", entry["message"]), rlx_pb2.ClientMessage())
        kind = kind_of(message)
        body = getattr(message, kind)
        if kind == "hello":
            flags = [int(getattr(body, flag)) for flag in ("reports_episodes", *CAPABILITIES)]
            numbers = [body.environments, body.mode, body.frame_skip, *flags]
            autoreset = [len(body.autoreset), *body.autoreset]
            texts = [_hex(text.encode()) for text in (body.environment, body.host, body.token, body.session_id)]
            spaces = [*_space(body.observation_space), *_space(body.action_space)]
            lines.append(["connect", f"127.0.0.1:{port}", *numbers, *autoreset, *texts, *spaces])
        elif kind == "init":
            lines.append(["init", _mask(body.partial), _mask(body.idle), *_leaves(body.observation)])
        elif kind in ("step", "reset"):
            fields = (body.terminated, body.truncated, body.idle) if kind == "step" else (body.truncated,)
            masks = [_mask(one) for one in (*fields, body.chosen)]
            episodes = ",".join(f"{e.environment}:{_bits(e.episode_return)}:{e.length}" for e in body.episodes)
            observation = body.observation if kind == "step" else []
            leaves = [*_leaves(observation), *_leaves(body.final_observation), *_leaves(body.action)]
            lines.append([kind, *_numbers(body.reward), *masks, episodes or "-", *leaves])
        elif kind == "metrics":
            lines += [["metric", _hex(scalar.name.encode()), _bits(scalar.value)] for scalar in body.scalars]
        elif kind == "ping":
            lines.append(["ping"])
    return [" ".join(map(str, line)) for line in lines]


def _space(space: Any) -> list[Any]:
    kind = space.WhichOneof("space")
    body = getattr(space, kind)
    if kind == "box":
        return [kind, body.dtype, len(body.shape), *body.shape, *_numbers(body.low), *_numbers(body.high)]
    if kind == "discrete":
        return [kind, body.n, body.start]
    if kind == "multi_discrete":
        return [kind, len(body.nvec), *body.nvec]
    if kind == "multi_binary":
        return [kind, len(body.shape), *body.shape]
    if kind == "tuple":
        return [kind, len(body.spaces), *(word for part in body.spaces for word in _space(part))]
    # In descending order of keys (the files have ascending order): the client must sort them.
    parts = [[_hex(entry.key.encode()), *_space(entry.space)] for entry in reversed(body.entries)]
    return [kind, len(parts), *(word for part in parts for word in part)]


def _hex(data: bytes) -> str:
    return data.hex() or "-"


def _bits(number: float) -> str:
    return struct.pack(">d", number).hex()


def _numbers(numbers: Sequence[float]) -> list[Any]:
    return [len(numbers), *map(_bits, numbers)]


def _mask(mask: Sequence[bool]) -> str:
    return "".join("01"[one] for one in mask) or "-"


def _leaves(arrays: Sequence[Any]) -> list[str]:
    return [_hex(array.data) for array in arrays]


def _serve(line: FrameStream, entries: list[dict[str, Any]]) -> None:
    held = b""  # sent with the next entry: some mistakes must arrive before the client's next message
    scalars: list[Any] = []  # normalized names and values; the client chooses how many it sends in a frame
    for place, entry in enumerate(entries):
        if entry["from"] == "client":
            wanted = json_format.ParseDict(entry["message"], rlx_pb2.ClientMessage())
            if kind_of(wanted) == "bye" or entry.get("late"):
                continue
            if kind_of(wanted) == "metrics":
                scalars += [(normalize_name(scalar.name), scalar.value) for scalar in wanted.metrics.scalars]
                continue
            while kind_of(sent := decoded(line.payload(), "protobuf", rlx_pb2.ClientMessage)) == "metrics":
                for scalar in sent.metrics.scalars:
                    if not scalars or scalars.pop(0) != (normalize_name(scalar.name), scalar.value):
                        raise Different(f"unexpected scalar: {scalar}")
            _compare(sent, wanted)
            if kind_of(wanted) != "pong" and scalars:
                raise Different(f"scalars that were not sent: {scalars}")
            continue
        held += _bytes_of(entry)
        following = entries[place + 1] if place + 1 < len(entries) else {}
        if following.get("from") != "server":
            line.send(held)
            held = b""
    line.end()
    try:
        while True:
            sent = decoded(line.payload(), "protobuf", rlx_pb2.ClientMessage)
            if kind_of(sent) not in ("bye", "ping"):
                raise Different(f"at the end the client sent {sent}")
    except StreamEnded:
        pass


def _bytes_of(entry: dict[str, Any]) -> bytes:
    data = bytes.fromhex(entry["bytes"])
    if "message" in entry and data[4:5] == b"{":
        return encoded(json_format.ParseDict(entry["message"], rlx_pb2.ServerMessage()), "protobuf")
    return data


def _compare(sent: Any, wanted: Any) -> None:
    if kind_of(sent) == kind_of(wanted) == "ping":
        return
    for message in (sent, wanted):
        if kind_of(message) == "hello":
            for field in DIFFERS:
                message.hello.ClearField(field)
            message.hello.frame_skip = message.hello.frame_skip or 1
            _sort(message.hello.observation_space)
            _sort(message.hello.action_space)
    if sent.SerializeToString(deterministic=True) != wanted.SerializeToString(deterministic=True):
        raise Different(f"the client sent {sent}; expected {wanted}")


def _sort(space: Any) -> None:
    """Sort the entries of dicts, whose order on the wire is arbitrary."""
    for part in space.tuple.spaces if space.HasField("tuple") else []:
        _sort(part)
    if space.HasField("dict"):
        space.dict.entries.sort(key=lambda entry: entry.key)
        for entry in space.dict.entries:
            _sort(entry.space)


def _expected_output(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines that the client must print. After `lost CODE` and `finished STEP`, it also prints a sentence."""
    lines: list[str] = []
    hello = rlx_pb2.Hello()
    names: list[str] = []
    parameters: list[list[float]] = []  # of each environment's next episode
    for entry in entries:
        if entry["from"] == "client":
            json_format.ParseDict(entry["message"].get("hello", {}), hello)
            continue
        if "error" in entry:
            lines.append(f"lost {ErrorCode[entry['error'].removeprefix('ERROR_CODE_')].value}")
            continue
        message = json_format.ParseDict(entry["message"], rlx_pb2.ServerMessage())
        kind = kind_of(message)
        body = getattr(message, kind)
        if kind == "welcome" and any(getattr(hello, name) and not getattr(body, name) for name in CAPABILITIES):
            lines.append(f"lost {ErrorCode.UNSUPPORTED_SPACE.value}")  # the client needs it and gives up
        elif kind == "welcome":
            lines.append(f"welcome {body.session_id.encode().hex()} {body.algorithm.encode().hex()}")
            names = list(body.parameter_names)
            parameters = _rows(body.parameters, hello.environments)
        elif kind == "actions":
            lines.append(" ".join(["actions", *_leaves(body.action)]))
            for environment, row in zip(
                body.parameters_of, _rows(body.parameters, len(body.parameters_of)), strict=True
            ):
                parameters[environment] = row
        elif kind == "episode_returns":
            lines.append(" ".join(["returns", *(struct.pack("<d", one).hex() for one in body.episode_return)]))
        elif kind == "pong":
            lines.append("pong")
        elif kind == "training_finished":
            lines.append(f"finished {body.global_step}")
        elif kind in ("error", "bye"):
            lines.append(f"lost {body.code if kind == 'error' else 0}")
        if hello.environment_parameters and lines[-1].startswith(("welcome", "actions")):
            columns = [
                [name.encode().hex(), *(struct.pack("<d", row[column]).hex() for row in parameters)]
                for column, name in enumerate(names)
            ]
            lines.append(" ".join(["parameters", *(word for words in columns for word in words)]))
    last = entries[-1]
    if last["from"] == "client" and not last.get("late") and next(iter(last["message"])) in _ASKS:
        lines.append("lost 0")  # the conversation ends before the answer
    return lines


def _rows(numbers: Sequence[float], count: int) -> list[list[float]]:
    """Divide numbers into `count` lists of equal length."""
    size = len(numbers) // max(count, 1)
    return [list(numbers[i * size : (i + 1) * size]) for i in range(count)]


def _agree(printed: str, expected: str) -> bool:
    if expected.startswith(("lost", "finished")):
        return printed.startswith(f"{expected} ") and len(printed) > len(expected) + 1
    return printed.split() == expected.split()
