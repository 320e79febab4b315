"""Mutated WebSocket requests and frames at a real server. Its answers are checked strictly."""

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


def mutated(seed: int, number: int) -> tuple[bytes, bytes]:
    """Return an HTTP request and the frames after it, with mutations in either."""
    rng = random.Random(f"websocket {seed} {number}")
    opening, data = request(), bytearray()
    if rng.random() < 0.3:
        opening = _mutated_request(rng, opening)
    frames = case(seed, number).frames[:40]
    for frame in frames:
        data += message(frame[4:])
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.choice((0, len(data), rng.randrange(len(data) + 1)))
        data[at:at] = _noise(rng)
    if data and rng.random() < 0.4:
        for _ in range(rng.choice((1, 1, 3))):
            data[min(int(rng.expovariate(0.01)), len(data) - 1)] ^= 1 << rng.randrange(8)
    return opening, bytes(data)


def _mutated_request(rng: random.Random, original: bytes) -> bytes:
    kind = rng.choice(("flip", "cut", "put", "header", "header", "line", "twice"))
    at = rng.randrange(len(original))
    if kind == "flip":
        return original[:at] + bytes([original[at] ^ 1 << rng.randrange(8)]) + original[at + 1 :]
    if kind == "cut":
        return original[:at] + original[at + rng.randrange(1, 20) :]
    if kind == "put":
        return original[:at] + rng.randbytes(rng.randrange(1, 30)) + original[at:]
    if kind == "header":
        return original.replace(b"\r\n", b"\r\n" + rng.choice(HEADERS) + b"\r\n", 1)
    if kind == "line":
        return rng.choice((b"GET", b"HEAD", b"PRI * HTTP/2.0", b"A" * 20_000, b"X /")) + original[3:]
    return original + original


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


def run_mutated(address: str, seed: int, number: int, ends: Counter[str]) -> None:
    """Run one case at a server. Raises AssertionError, with the seed, if the answer is invalid or does not end.

    `ends`: the kind of the answer is counted here.
    """
    opening, data = mutated(seed, number)
    answer, where = bytearray(), f"seed {seed}, case {number}"
    with connect_to(address, DEADLINE) as sock:
        try:
            sock.sendall(opening)
            if not random.Random(number).randrange(3):  # wait for the answer first, as a browser does
                answer += sock.recv(1 << 16)
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(1 << 16):
                answer += piece
        except TimeoutError:
            raise AssertionError(f"{where}: the server does not close the connection") from None
        except OSError:  # the server closed the connection before it had read everything
            while True:
                try:
                    piece = sock.recv(1 << 16)
                except OSError:
                    break
                if not piece:
                    break
                answer += piece
    try:
        ends[_kind_of(bytes(answer)) if begins_with_http(opening) else "no HTTP"] += 1
    except (AssertionError, RuleViolation, rlx.ProtocolError, UnicodeDecodeError) as error:
        raise AssertionError(f"{where}: {error}\n{bytes(answer)!r}") from error


def _kind_of(answer: bytes) -> str:
    """Return the kind of an answer. Raises AssertionError, ProtocolError and UnicodeDecodeError if it is invalid."""
    if not answer:
        return "nothing"
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 101 "):
        assert head.startswith(b"HTTP/1.1 4") or head.startswith(b"HTTP/1.1 505 "), head
        assert f"Content-Length: {len(body)}".encode() in head
        assert body.decode().endswith(".\n")
        return f"HTTP {head[9:12].decode()}"
    strict, last = Unframer(), "no message"
    frames = strict.unframe(answer)
    while frames:
        end = 4 + int.from_bytes(frames[:4], "big")
        payload, frames = frames[4:end], frames[end:]
        decoded = codec_of(payload[0]).decode(payload, Sender.SERVER)
        last = decoded.code.name if isinstance(decoded, rlx.Error) else type(decoded).__name__  # type: ignore[union-attr]
    return f"{last}, {strict.close_code}"
