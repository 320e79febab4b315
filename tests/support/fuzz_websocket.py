"""Spoiled WebSocket at a real server: requests and frames, byte by byte. What it says in return is read strictly."""

from __future__ import annotations

import random
import socket
import struct
from collections import Counter

from relaax import rlx
from relaax.conformance.websocket import BINARY, CLOSE, PING, PONG, Unframer, message, request
from relaax.conformance.wire import RuleViolation
from relaax.rlx import Sender
from relaax.rlx.wire.codecs import codec_of
from relaax.server.rlx_server.connection.channel import begins_with_http
from support.connection_floods import connect_to
from support.fuzz_cases import case

DEADLINE = 60.0
LENGTHS = (0, 1, 125, 126, 127, 65_535, 65_536, 65_537, 2**20, 2**20 + 1, 2**31, 2**32, 2**63 - 1)
CODES = (0, 999, 1000, 1001, 1004, 1005, 1006, 1015, 3000, 4999, 5000, 65_535)
HEADERS = (
    *(b"Origin: https://evil.example", b"Origin: http://localhost", b"Origin:", b"Host: a\r\nHost: b", b"X: \0", b"X"),
    *(b" folded: yes", b"Content-Length: 100", b"Transfer-Encoding: chunked", b"Sec-WebSocket-Key: AAAA", b"\xff"),
    *(b"Sec-WebSocket-Extensions: permessage-deflate; x=", b"Sec-WebSocket-Protocol: a, b, ,", b"Upgrade: h2c"),
    *(b"Connection: close", b"Expect: 100-continue", b"Sec-WebSocket-Version: 14", b":"),
    *(b"X: " + b"y" * 9000, b"X: y\r\n" * 150),
)  # fmt: skip


def spoiled(seed: int, number: int) -> tuple[bytes, bytes]:
    """A request, and what follows it: some of both is wrong."""
    rng = random.Random(f"websocket {seed} {number}")
    asked, said = request(), bytearray()
    if rng.random() < 0.3:
        asked = _other_request(rng, asked)
    frames = case(seed, number).frames[:40]
    for frame in frames:
        said += message(frame[4:])
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.choice((0, len(said), rng.randrange(len(said) + 1)))
        said[at:at] = _noise(rng)
    if said and rng.random() < 0.4:
        for _ in range(rng.choice((1, 1, 3))):
            said[min(int(rng.expovariate(0.01)), len(said) - 1)] ^= 1 << rng.randrange(8)
    return asked, bytes(said)


def _other_request(rng: random.Random, asked: bytes) -> bytes:
    kind = rng.choice(("flip", "cut", "put", "header", "header", "line", "twice"))
    at = rng.randrange(len(asked))
    if kind == "flip":
        return asked[:at] + bytes([asked[at] ^ 1 << rng.randrange(8)]) + asked[at + 1 :]
    if kind == "cut":
        return asked[:at] + asked[at + rng.randrange(1, 20) :]
    if kind == "put":
        return asked[:at] + rng.randbytes(rng.randrange(1, 30)) + asked[at:]
    if kind == "header":
        return asked.replace(b"\r\n", b"\r\n" + rng.choice(HEADERS) + b"\r\n", 1)
    if kind == "line":
        return rng.choice((b"GET", b"HEAD", b"PRI * HTTP/2.0", b"A" * 20_000, b"X /")) + asked[3:]
    return asked + asked


def _noise(rng: random.Random) -> bytes:
    kind = rng.choice(("text", "control", "close", "length", "opcode", "plain", "random", "fragments", "empty"))
    if kind == "text":
        return message(rng.choice((b"", b"{}", b"\xff\xfe", b'{"ping":{}}')), 1)
    if kind == "control":
        return message(rng.randbytes(rng.choice((0, 125, 126))), rng.choice((PING, PONG)), fin=rng.random() < 0.9)
    if kind == "close":
        return message(struct.pack(">H", rng.choice(CODES)) + rng.choice((b"", b"bye", b"\xff")), CLOSE)
    if kind == "length":
        return message(rng.randbytes(20), rng.choice((BINARY, 0, PING)), length=rng.choice(LENGTHS))
    if kind == "opcode":
        return message(b"abc", rng.randrange(16), fin=rng.random() < 0.5)
    if kind == "plain":
        return b"\x82\x03abc"
    if kind == "fragments":
        return message(b"{", fin=False) + message(b"", 0, fin=False) * rng.choice((1, 500)) + message(b"}", 0)
    return rng.randbytes(rng.choice((1, 3, 50))) if kind == "random" else message(b"")


def run_spoiled(address: str, seed: int, number: int, ends: Counter[str]) -> None:
    """One case at the server. Raises AssertionError, with the seed, if it says what it may not, or does not end."""
    asked, said = spoiled(seed, number)
    heard, where = bytearray(), f"seed {seed}, case {number}"
    with connect_to(address, DEADLINE) as sock:
        try:
            sock.sendall(asked)
            if not random.Random(number).randrange(3):  # as the page asks for: the answer first
                heard += sock.recv(1 << 16)
            sock.sendall(said)
            sock.shutdown(socket.SHUT_WR)
            while data := sock.recv(1 << 16):
                heard += data
        except TimeoutError:
            raise AssertionError(f"{where}: the server does not end") from None
        except OSError:  # it closed on more to come
            while True:
                try:
                    data = sock.recv(1 << 16)
                except OSError:
                    break
                if not data:
                    break
                heard += data
    try:
        ends[_judged(bytes(heard)) if begins_with_http(asked) else "no HTTP"] += 1
    except (AssertionError, RuleViolation, rlx.ProtocolError, UnicodeDecodeError) as error:
        raise AssertionError(f"{where}: {error}\n{bytes(heard)!r}") from error


def _judged(heard: bytes) -> str:
    """What an answer of the server is. Raises AssertionError, ProtocolError and UnicodeDecodeError."""
    if not heard:
        return "nothing"
    head, _, body = heard.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 101 "):
        assert head.startswith(b"HTTP/1.1 4") or head.startswith(b"HTTP/1.1 505 "), head
        assert f"Content-Length: {len(body)}".encode() in head
        assert body.decode().endswith(".\n")
        return f"HTTP {head[9:12].decode()}"
    strict, last = Unframer(), "no word"
    frames = strict.unframe(heard)
    while frames:
        end = 4 + int.from_bytes(frames[:4], "big")
        payload, frames = frames[4:end], frames[end:]
        answer = codec_of(payload[0]).decode(payload, Sender.SERVER)
        last = answer.code.name if isinstance(answer, rlx.Error) else type(answer).__name__  # type: ignore[union-attr]
    return f"{last}, {strict.close_code}"
