"""An RLX client in one file, JSON, without any library, that keeps to the protocol but for one fault.

    python faulty_client.py HOST:PORT [FAULT]

It plays episodes of five steps, sends two metrics, checks what it is told, and connects again where it may.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import struct
import sys
import time
from typing import Any

FAULT = sys.argv[2] if len(sys.argv) > 2 else ""
EPISODES, STEPS, RETRIES = 100, 5, 3
HELLO = {
    "protocolVersion": 2 if FAULT == "version" else 1,
    "environments": 1,
    "observationSpace": {"box": {"dtype": "DTYPE_FLOAT32", "shape": [2]}},
    "actionSpace": {"discrete": {"n": 3}},
    "autoreset": ["AUTORESET_DISABLED"],
    "mode": "MODE_TRAIN",
}
KINDS = {"hello": "welcome", "init": "actions", "step": "actions", "reset": "episodeReturns"}
ANSWERS = {*KINDS.values(), "ping", "pong", "error", "bye", "trainingFinished"}


class Mistake(Exception):
    """The server's."""


class Again(Exception):
    """Connect again, after the seconds that it says."""


class Connection:
    def __init__(self, address: tuple[str, int]) -> None:
        self.wire = socket.create_connection(address)
        self.wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.limit = 65536
        self.said = 0

    def send(self, message: dict[str, Any]) -> None:
        payload = json.dumps(message).encode()
        if FAULT == "mixed_codec" and "init" in message:
            payload = b"\x12\x00"
        header = struct.pack(">I", 2**31 if FAULT == "huge" and "init" in message else len(payload))
        self.wire.sendall(header + payload)

    def take(self, count: int) -> bytes:
        while len(self.buffer) < count:
            data = self.wire.recv(65536)
            if not data or (FAULT == "packets_are_frames" and len(data) < count):
                raise Again(0.1)
            self.buffer += data
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def receive(self) -> dict[str, Any]:
        (length,) = struct.unpack(">I", self.take(4))
        if length == 0 and FAULT == "empty_frames":
            return self.receive()
        if not 0 < length <= self.limit and FAULT != "any_length":
            raise Mistake("length")
        payload = self.take(length)
        if FAULT == "drops_the_rest":
            self.buffer = b""
        try:
            tree: dict[str, Any] = json.loads(payload, object_hook=names)
        except ValueError:
            raise Mistake("no JSON") from None
        if sum(name in tree for name in ANSWERS) > 1 and FAULT not in ("two_messages", "last_message"):
            raise Mistake("two messages")
        if FAULT == "last_message":
            tree = dict(list(tree.items())[-1:])
        return tree

    def ask(self, kind: str, body: dict[str, Any]) -> Any:
        self.send({kind: body})
        if FAULT == "impatient" and kind == "step":
            time.sleep(0.1)
            self.send({kind: body})
        while True:
            answer = self.receive()
            if "ping" in answer:
                nonce = 4 if FAULT == "wrong_nonce" else answer["ping"].get("nonce", 0)
                if FAULT != "no_pong":
                    self.send({"pong": {"nonce": nonce}})
            elif "trainingFinished" in answer:
                if FAULT == "never_ends":
                    time.sleep(30)
                if FAULT == "stubborn":
                    raise Again(0.0)
                sys.exit(3 if FAULT == "exit_code" else 0)
            elif "error" in answer:
                error = answer["error"]
                may = error.get("retryable", False)
                if FAULT == "by_code":
                    may = str(error["code"]).removeprefix("ERROR_CODE_") in ("UNAVAILABLE", "OVERLOADED")
                if not may and FAULT != "stubborn":
                    sys.exit(1)
                raise Again(0.0 if FAULT == "hurries" else error.get("retryAfterSeconds") or 0.0)
            elif "bye" in answer:
                if FAULT == "talks_on":
                    self.send({kind: body})
                raise Again(0.1)
            elif KINDS[kind] in answer:
                return answer[KINDS[kind]]
            elif FAULT == "credulous":
                continue
            else:
                raise Mistake(f"{list(answer)}")


def names(tree: dict[str, Any]) -> dict[str, Any]:
    if FAULT == "known_fields_only" and "colour" in tree:
        raise Mistake("colour")
    if FAULT == "one_spelling":
        return tree
    return {re.sub("_(.)", lambda found: found[1].upper(), name): value for name, value in tree.items()}


def observation(*numbers: float) -> list[dict[str, Any]]:
    data = base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
    return [{"dtype": "DTYPE_FLOAT32", "shape": [1, len(numbers)], "data": data}]


def check_action(answer: dict[str, Any]) -> None:
    if FAULT == "credulous":
        return
    (leaf,) = answer["action"]
    if leaf["dtype"] not in ("DTYPE_INT64", 9) or leaf["shape"] != [1]:
        raise Mistake("shape")
    if not 0 <= struct.unpack("<q", base64.b64decode(leaf["data"]))[0] < 3:
        raise Mistake("range")


def play(connection: Connection, session_id: str) -> str:
    """Episodes to the end, or until an exception; the session id is noted in SESSION."""
    if FAULT == "init_first":
        connection.ask("init", {"observation": observation(0, 0)})
    if FAULT == "mute":
        connection.wire.recv(1)
    welcome = connection.ask("hello", HELLO | {"sessionId": session_id})
    limits = welcome["limits"]
    right = welcome["protocolVersion"] == 1 and limits["maxFrameBytes"] >= 8 and limits.get("heartbeatSeconds", 0) > 0
    if not right and FAULT != "credulous":
        raise Mistake("welcome")
    connection.limit = limits["maxFrameBytes"]
    SESSION[:] = [welcome["sessionId"]]
    scalars = [{"name": name, "value": 1.0} for name in (("a", "b", "c") if FAULT == "many_metrics" else ("a", "b"))]
    connection.send({"metrics": {"scalars": scalars}})
    for _ in range(EPISODES):
        check_action(connection.ask("init", {"observation": observation(0, 0)}))
        for _ in range(STEPS):
            reward = "NaN" if FAULT == "nan" else 1.0
            numbers = (1, 1, 1) if FAULT == "shape" else (1, 1)
            check_action(connection.ask("step", {"reward": [reward], "observation": observation(*numbers)}))
        connection.ask("reset", {"reward": [1.0]})
    connection.send({"bye": {}})
    return ""


SESSION = [""]


def main() -> None:
    host, port = sys.argv[1].split(":")
    if FAULT == "absent":
        sys.exit("there is no such environment")
    for _ in range(RETRIES):
        connection = Connection((host, int(port)))
        try:
            play(connection, "" if FAULT == "forgets" else SESSION[0])
            return
        except Again as again:
            connection.wire.close()
            time.sleep(again.args[0])
        except Mistake as mistake:
            if FAULT == "holds_on":
                time.sleep(30)
            sys.exit(f"the server made a mistake: {mistake}")


main()
