"""An RLX client in one file, with JSON and without libraries, that follows the protocol except for one fault.

    python faulty_client.py HOST:PORT [FAULT]

It plays episodes of five steps, sends two metrics, checks the answers, and reconnects if allowed. With the "fault"
`next_step`, it is a correct client that uses Autoreset.NEXT_STEP, and with `out_of_step` one that marks `idle`.
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
NEXT_STEP = FAULT in ("next_step", "says_first", "begins_at_the_end")
OUT_OF_STEP = FAULT in ("out_of_step", "no_first", "stays_unadmitted")
HELLO = {
    "protocolVersion": 2 if FAULT == "version" else 1,
    "environments": 1,
    "observationSpace": {"box": {"dtype": "DTYPE_FLOAT32", "shape": [2]}},
    "actionSpace": {"discrete": {"n": 3}},
    "autoreset": ["AUTORESET_NEXT_STEP" if NEXT_STEP else "AUTORESET_DISABLED"],
    "mode": "MODE_TRAIN",
    "outOfStep": OUT_OF_STEP,
}
KINDS = {"hello": "welcome", "init": "actions", "step": "actions", "reset": "episodeReturns"}
ANSWERS = {*KINDS.values(), "ping", "pong", "error", "bye", "trainingFinished"}
FIELDS: list[tuple[Any, set[str]]] = [
    (dict, {*ANSWERS, "limits"}),
    (list, {"action", "shape", "episodeReturn"}),
    (str, {"serverVersion", "sessionId", "algorithm", "data", "message", "reason"}),
    ((int, float), {"protocolVersion", "maxFrameBytes", "idleTimeoutSeconds", "heartbeatSeconds", "retryAfterSeconds"}),
]


class ServerMistake(Exception):
    """A mistake of the server."""


class Reconnect(Exception):
    """A request to reconnect. Its argument: seconds to wait first."""


class Connection:
    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.limit = 65536

    def send(self, message: dict[str, Any]) -> None:
        payload = json.dumps(message).encode()
        if FAULT == "mixed_codec" and "init" in message:
            payload = b"\x12\x00"
        header = struct.pack(">I", 2**31 if FAULT == "huge" and "init" in message else len(payload))
        self.socket.sendall(header + payload)

    def read(self, count: int) -> bytes:
        while len(self.buffer) < count:
            data = self.socket.recv(65536)
            if not data or (FAULT == "packets_are_frames" and len(data) < count):
                raise Reconnect(0.1)
            self.buffer += data
        result, self.buffer = self.buffer[:count], self.buffer[count:]
        return result

    def receive(self) -> dict[str, Any]:
        (length,) = struct.unpack(">I", self.read(4))
        if length == 0 and FAULT == "empty_frames":
            return self.receive()
        if not 0 < length <= self.limit and FAULT != "endless_frames":
            raise ServerMistake("length")
        payload = self.read(length)
        if payload[:1] != b"{":
            raise Reconnect(0.1)
        if FAULT == "drops_the_rest":
            self.buffer = b""
        try:
            text = payload.decode(errors="replace" if FAULT == "any_bytes" else "strict")
            tree: dict[str, Any] = json.loads(text, object_hook=names)
        except ValueError:
            raise ServerMistake("no JSON") from None
        if sum(name in tree for name in ANSWERS) > 1 and FAULT not in ("two_messages", "last_message"):
            raise ServerMistake("two messages")
        if FAULT == "last_message":
            tree = dict(list(tree.items())[-1:])
        return tree

    def handle_received(self) -> None:
        """Read and handle the messages that have arrived, without waiting."""
        self.socket.setblocking(False)
        try:
            while data := self.socket.recv(65536):
                self.buffer += data
        except BlockingIOError:
            pass
        self.socket.setblocking(True)
        while len(self.buffer) >= 4 and len(self.buffer) >= 4 + struct.unpack(">I", self.buffer[:4])[0]:
            self.receive_answer("")

    def ask(self, kind: str, body: dict[str, Any]) -> Any:
        if FAULT != "speaks_first":
            self.handle_received()
        self.send({kind: body})
        if FAULT == "impatient" and kind == "step":
            time.sleep(0.1)
            self.send({kind: body})
        while True:
            answer = self.receive_answer(kind)
            if answer is not None:
                return answer

    def receive_answer(self, sent: str) -> Any:
        """Return the answer to a message of kind `sent`, or None for a ping or a pong."""
        answer = self.receive()
        if "ping" in answer:
            nonce = 4 if FAULT == "wrong_nonce" else (answer["ping"] or {}).get("nonce", 0)
            if FAULT != "no_pong":
                self.send({"pong": {"nonce": nonce}})
        elif "pong" in answer:
            if FAULT == "no_unasked_pong":
                raise ServerMistake("a pong")
        elif "trainingFinished" in answer:
            self.end()
            if FAULT == "never_ends":
                time.sleep(30)
            if FAULT == "stubborn":
                raise Reconnect(0.0)
            sys.exit(3 if FAULT == "exit_code" else 0)
        elif "error" in answer:
            error = answer["error"]
            retry, wait = error.get("retryable", False), error.get("retryAfterSeconds") or 0.0
            if not (0 <= wait < 1e9 or FAULT == "any_wait"):
                raise ServerMistake("invalid retryAfterSeconds")
            self.end()
            if FAULT == "by_code":
                retry = str(error["code"]).removeprefix("ERROR_CODE_") in ("UNAVAILABLE", "OVERLOADED")
            if not retry and FAULT != "stubborn":
                sys.exit(0 if FAULT == "no_exit_code" else 1)
            raise Reconnect(0.0 if FAULT == "hurries" else max(0.0, wait))
        elif "bye" in answer:
            self.end()
            if FAULT == "talks_on":
                self.send({sent: {}})
            raise Reconnect(0.1)
        elif sent and KINDS[sent] in answer:
            return answer[KINDS[sent]]
        elif FAULT != "credulous":
            raise ServerMistake(f"{list(answer)}")
        return None

    def end(self) -> None:
        """Send a bye after the server's last message, if FAULT requires it."""
        if FAULT == "bye_after_the_end":
            self.send({"bye": {}})


def names(tree: dict[str, Any]) -> dict[str, Any]:
    if FAULT == "known_fields_only" and "colour" in tree:
        raise ServerMistake("colour")
    if FAULT == "one_spelling":
        return tree
    known = {re.sub("_(.)", lambda found: found[1].upper(), name): value for name, value in tree.items()}
    for kind, fields in FIELDS if FAULT != "any_kind" else ():
        for name in fields & known.keys():
            wrong = not isinstance(known[name], kind) or isinstance(known[name], bool)
            wrong = wrong or (name == "shape" and bool in map(type, known[name]))
            if known[name] is not None and wrong:
                raise ServerMistake(f"the kind of {name}")
    return known


def base64_bytes(text: str) -> bytes:
    if FAULT == "any_base64":
        return base64.b64decode(text + "==")
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise ServerMistake("base64")
    return data


def observation(*numbers: float) -> list[dict[str, Any]]:
    data = base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
    return [{"dtype": "DTYPE_FLOAT32", "shape": [1, len(numbers)], "data": data}]


def check_action(answer: dict[str, Any]) -> None:
    if FAULT == "credulous":
        return
    leaf = answer["action"][0]
    if len(answer["action"]) != 1 and FAULT != "any_leaves":
        raise ServerMistake("leaves")
    if leaf["dtype"] not in ("DTYPE_INT64", 9) or (leaf["shape"] != [1] and FAULT != "any_shape"):
        raise ServerMistake("shape")
    data = base64_bytes(leaf["data"])
    if len(data) != 8 and FAULT == "any_length":
        return
    if len(data) != 8 or not 0 <= struct.unpack("<q", data)[0] < 3:
        raise ServerMistake("range")


def play(connection: Connection, session_id: str) -> str:
    """Play all episodes. Stores the session id in SESSION."""
    if FAULT == "init_first":
        connection.ask("init", {"observation": observation(0, 0)})
    if FAULT == "mute":
        connection.socket.recv(1)
    welcome = connection.ask("hello", HELLO | {"sessionId": session_id})
    limits, session = welcome["limits"], welcome.get("sessionId") or ""
    right = welcome["protocolVersion"] == 1 and limits["maxFrameBytes"] >= 8 and limits.get("heartbeatSeconds", 0) > 0
    named = re.fullmatch("[A-Za-z0-9_-]{0,128}", str(session)) or FAULT == "any_session_id"
    if not (right and named) and FAULT != "credulous":
        raise ServerMistake("welcome")
    if OUT_OF_STEP and not welcome.get("outOfStep") and FAULT != "stays_unadmitted":
        connection.send({"bye": {}})
        connection.socket.close()
        sys.exit("the server does not support environments out of step")
    connection.limit = limits["maxFrameBytes"]
    SESSION[:] = [session]
    scalars = [{"name": name, "value": 1.0} for name in (("a", "b", "c") if FAULT == "many_metrics" else ("a", "b"))]
    connection.send({"metrics": {"scalars": scalars}})
    if NEXT_STEP:
        play_next_step(connection)
    for _ in range(EPISODES):
        idle = {"idle": [True]} if OUT_OF_STEP else {}
        check_action(connection.ask("init", {"observation": observation(0, 0)} | idle))
        for count in range(STEPS):
            reward = "NaN" if FAULT == "nan" else 1.0
            numbers = (1, 1, 1) if FAULT == "shape" else (1, 1)
            step = {"reward": [reward], "observation": observation(*numbers)}
            if count == 0:
                step["first"] = [OUT_OF_STEP and FAULT != "no_first"]
            elif count % 2 and (OUT_OF_STEP or FAULT == "idle_unasked"):
                step |= {"idle": [True], "observation": observation(float("nan"), 0)}
            check_action(connection.ask("step", step))
        returns = connection.ask("reset", {"reward": [1.0]})["episodeReturn"]
        if (len(returns) != 1 and FAULT != "any_returns") or (abs(returns[0]) > 1e30 and FAULT != "large_returns"):
            raise ServerMistake("returns")
    connection.send({"bye": {}})
    return ""


def play_next_step(connection: Connection) -> None:
    """Play episodes of five steps that end with a step. ENDED: whether the last episode has ended."""
    ended = ENDED[0] and FAULT != "next_step"
    check_action(connection.ask("init", {"observation": observation(1, int(ended))}))
    first = ended and FAULT == "says_first"
    for count in range(1, EPISODES * STEPS):
        ENDED[0] = count % STEPS == 0
        step = {
            "reward": [1.0],
            "observation": observation(1, int(ENDED[0])),
            "terminated": [ENDED[0]],
            "first": [first],
        }
        check_action(connection.ask("step", step))
        first = ENDED[0]


ENDED = [False]
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
        except Reconnect as reconnect:
            connection.socket.close()
            time.sleep(reconnect.args[0])
        except ServerMistake as mistake:
            if FAULT == "holds_on":
                time.sleep(30)
            sys.exit(f"the server made a mistake: {mistake}")


main()
