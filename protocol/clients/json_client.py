"""A client of RLX in JSON for one environment, with the standard library alone. It passes `relaax conformance`.

python json_client.py HOST:PORT EPISODES

The environment is a point that is rewarded for moving right. To connect another one, change `observation`, `action` and
`play`.
"""

import base64
import json
import random
import re
import socket
import struct
import sys
import time

KINDS = {
    dict: "welcome actions episodeReturns error trainingFinished ping pong bye limits",
    list: "action shape episodeReturn",
    str: "sessionId data message reason algorithm serverVersion",
    bool: "retryable",
    float: "protocolVersion maxFrameBytes idleTimeoutSeconds heartbeatSeconds retryAfterSeconds nonce",
}
KIND = {name: kind for kind, names in KINDS.items() for name in names.split()}
MESSAGES = set(KINDS[dict].split()) - {"limits"}


class Mistake(Exception):
    """A protocol violation of the server."""


class Lost(Exception):
    """A lost connection. The first argument is the number of seconds that the server asks to wait."""


def check(right, what):
    """Raise Mistake unless `right` is true."""
    if not right:
        raise Mistake(what)


def read_object(pairs):
    """Return a JSON object with names in lowerCamelCase and without nulls. Check the types of its values."""
    check(len(dict(pairs)) == len(pairs), "duplicate key")
    there = {re.sub("_(.)", lambda found: found[1].upper(), name): value for name, value in pairs if value is not None}
    for name in there.keys() & KIND.keys():
        check(kind_of(there[name]) is KIND[name], f"wrong type of {name}")
    check(all(kind_of(axis) is float for axis in there.get("shape", [])), "wrong type of an axis")
    return there


def kind_of(value):
    """Return the type of a JSON value; float for all numbers."""
    return float if type(value) is int else type(value)


class Connection:
    """A connection to a server."""

    def __init__(self, host, port):
        self.wire = socket.create_connection((host, int(port)), timeout=60)
        self.silence, self.limit, self.held, self.answered = 60, 65536, b"", False

    def send(self, message):
        payload = json.dumps(message).encode()
        assert len(payload) <= self.limit, "message exceeds maxFrameBytes"
        self.wire.sendall(struct.pack(">I", len(payload)) + payload)

    def receive(self, wait):
        """Return the next message; None if `wait` is false and none has arrived."""
        while len(self.held) < 4 or len(self.held) < 4 + self.length():
            self.wire.settimeout(self.silence if wait else 0)
            try:
                data = self.wire.recv(65536)
            except BlockingIOError:
                return None
            finally:
                self.wire.settimeout(self.silence)
            if not data:
                raise Lost(0)
            self.held += data
        end = 4 + self.length()
        payload, self.held = self.held[4:end], self.held[end:]
        if payload[:1] != b"{":
            raise Lost(0)
        try:
            message = json.loads(payload.decode(), object_pairs_hook=read_object)
        except ValueError as error:
            raise Mistake(error) from None
        check(type(message) is dict and len(MESSAGES & message.keys()) == 1, "a frame must hold exactly one message")
        return message

    def length(self):
        (length,) = struct.unpack(">I", self.held[:4])
        check(0 < length <= self.limit, "frame length out of range")
        return length

    def ask(self, message, kind):
        self.read_until(None, wait=False)
        self.send(message)
        return self.read_until(kind)

    def read_until(self, kind, wait=True):
        """Return the answer; None if `wait` is false and only pings and pongs have arrived."""
        while answer := self.receive(wait):
            if kind in answer:
                return answer[kind]
            if "ping" in answer:
                self.send({"pong": answer["ping"]})
            elif "trainingFinished" in answer:
                sys.exit(0)
            elif "bye" in answer:
                raise Lost(0)
            elif "error" in answer:
                seconds = answer["error"].get("retryAfterSeconds", 0)
                check(0 <= seconds < 1e9, "retryAfterSeconds out of range")
                if not answer["error"].get("retryable"):
                    sys.exit(answer["error"].get("message", "an error"))
                raise Lost(seconds)
            else:
                check("pong" in answer, "message not allowed at this point")


def observation(x, y):
    """Return the leaves of an observation."""
    data = base64.b64encode(struct.pack("<2f", x, y)).decode()
    return [{"dtype": "DTYPE_FLOAT32", "shape": [1, 2], "data": data}]


def action(answer):
    """Return the action of an `actions` message."""
    check(len(answer.get("action", [])) == 1, "an action must have one leaf")
    leaf = answer["action"][0]
    check(leaf.get("dtype") in ("DTYPE_INT64", 9) and leaf.get("shape") == [1], "wrong dtype or shape of the action")
    data = base64.b64decode(leaf.get("data", ""))
    check(len(data) == 8 and base64.b64encode(data).decode() == leaf["data"], "data must be base64 of 8 bytes")
    (number,) = struct.unpack("<q", data)
    check(0 <= number < 3, "action out of range")
    return number


def play(connection):
    """Send the hello, and play the remaining episodes."""
    global failures, played, session
    hello = {
        "protocolVersion": 1,
        "environment": "Line",
        "environments": 1,
        "observationSpace": {"box": {"dtype": "DTYPE_FLOAT32", "shape": [2]}},
        "actionSpace": {"discrete": {"n": 3}},
        "autoreset": ["AUTORESET_DISABLED"],
        "mode": "MODE_TRAIN",
        "sessionId": session,
    }
    welcome = connection.ask({"hello": hello}, "welcome")
    limits = welcome.get("limits", {})
    times = [limits.get(name, 0) for name in ("heartbeatSeconds", "idleTimeoutSeconds")]
    check(welcome.get("protocolVersion") == 1 and min(times) > 0, "invalid version or times in the welcome")
    check(limits.get("maxFrameBytes", 0) > 250, "maxFrameBytes too small")
    check(re.fullmatch("[A-Za-z0-9_-]{0,128}", welcome.get("sessionId", "")), "invalid session id")
    session, connection.limit = welcome.get("sessionId", ""), limits["maxFrameBytes"]
    connection.silence = min(max(5, 3 * times[0]), 1e5)
    while played < int(sys.argv[2]):
        x = 0.0
        chosen = action(connection.ask({"init": {"observation": observation(x, 1.0)}}, "actions"))
        failures, connection.answered = 0, True
        for _ in range(9):
            x += chosen - 1
            step = {"reward": [chosen - 1], "observation": observation(x, 1.0)}
            chosen = action(connection.ask({"step": step}, "actions"))
        returns = connection.ask({"reset": {"reward": [chosen - 1]}}, "episodeReturns").get("episodeReturn", [])
        check(len(returns) == 1 and kind_of(returns[0]) is float and abs(returns[0]) <= 1e30, "invalid episode return")
        print(returns[0])
        played += 1
    connection.send({"bye": {}})
    connection.wire.shutdown(socket.SHUT_WR)
    connection.wire.settimeout(2)
    while connection.wire.recv(65536):
        pass


failures = played = 0
session = ""
while True:
    wait, connection = 0, None
    try:
        connection = Connection(*sys.argv[1].split(":"))
        play(connection)
        break
    except Lost as lost:
        wait = lost.args[0]
    except OSError as error:
        print(error, file=sys.stderr)
    except Mistake as mistake:
        if not connection.answered:
            sys.exit(f"protocol violation of the server: {mistake}")
    finally:
        if connection:
            connection.wire.close()
    time.sleep(wait + min(30, 0.5 * 2**failures) * random.uniform(0.5, 1))
    failures = min(failures + 1, 6)
