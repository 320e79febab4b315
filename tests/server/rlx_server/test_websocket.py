"""Tests of RLX over WebSocket on the RLX port: accepted requests, refusals and close codes."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest

from relaax import rlx
from relaax.client import Client, VectorClient
from relaax.conformance.websocket import CLOSE, PING, message, request
from relaax.rlx import ErrorCode
from relaax.server.rlx_server.connection.channel import MAX_REQUEST_BYTES, NO_GRPC, NO_PAGES
from support.offline_algorithm import SLOW
from support.processes import Running, wait_until
from support.rlx_line import PATIENCE, Line
from support.rlx_pair import make_hello
from support.websocket_relay import upgraded

pytestmark = pytest.mark.checks("relaax/server", "relaax/rlx")

TOKEN = "a-token-of-the-test"
Server = tuple[Running, str]
MAX_STALLED = 16
"""Workers that may wait for their clients, instead of 64."""
SPACES = {"observation_space": rlx.Box(shape=(2,)), "action_space": rlx.Discrete(3)}


def connect(address: str, source: str | None = None) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE, (source, 0) if source else None)


def answer_to(address: str, data: bytes, source: str | None = None) -> str:
    """Send `data` and return everything that the server answers, as text."""
    with connect(address, source) as sock:
        sock.sendall(data)
        received = b""
        with contextlib.suppress(ConnectionError):
            while piece := sock.recv(1 << 16):
                received += piece
    return received.decode()


@pytest.fixture
def line(shared: Server) -> Iterator[Line]:
    with Line(shared[1], websocket=True) as connection:
        yield connection


def expect_error(line: Line, code: ErrorCode, words: str, close_code: int) -> None:
    error = line.expect(rlx.Error)
    assert error.code is code
    assert words in error.message
    line.expect_end()
    assert line.websocket is not None
    assert line.websocket.unframer.close_code == close_code


@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_episode_over_websocket_ends_with_code_1000(shared: Server, codec: str) -> None:
    with Line(shared[1], codec, websocket=True) as line:
        line.open(environments=2)
        assert line.init() == 0
        assert line.step() == 0
        line.send(rlx.Reset(np.array([3.0, 4.0])))
        assert line.expect(rlx.EpisodeReturns).episode_return.tolist() == [4.0, 5.0]
        line.send(rlx.Bye("done"))
        line.expect_end()
        assert line.websocket is not None
        assert line.websocket.unframer.close_code == 1000


@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_client_library_connects_to_a_ws_address(shared: Server, codec: str) -> None:
    with Client(f"ws://{shared[1]}/any/path?at=all", codec=codec, **SPACES) as client:  # type: ignore[arg-type]
        assert client.init([0.0, 0.0]) == 0
        assert client.send(1.0, [0.0, 0.0]) == 0
        assert client.ping() < PATIENCE
        assert client.reset(1.0) == 2.0
    with VectorClient(f"ws://{shared[1]}", environments=3, codec=codec, **SPACES) as many:  # type: ignore[arg-type]
        assert many.init(np.zeros((3, 2), np.float32)).tolist() == [0, 0, 0]


def test_long_messages_and_heartbeats_pass_over_websocket(shared: Server) -> None:
    with Line(shared[1], websocket=True) as line:
        line.open(observation_space=rlx.Box(-np.inf, np.inf, (200_000,), "float32"))
        assert line.init(SLOW) == 0
        assert line.pings >= 2
        for _ in range(5):
            line.step(0)


def test_request_sent_byte_by_byte_is_accepted(shared: Server) -> None:
    with connect(shared[1]) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request_bytes = request()
        for at in range(len(request_bytes) - 1):
            sock.sendall(request_bytes[at : at + 1])
        wire = upgraded(sock, request_bytes[-1:])
        wire.sendall(rlx.ClientConnection().send(make_hello()))
        assert wire.recv(4)


@pytest.mark.parametrize("origin", [None, "http://localhost", "https://localhost:8443", "http://127.0.0.1:3000",
                                    "http://127.9.9.9", "http://[::1]:8000"])  # fmt: skip
def test_programs_and_local_origins_are_accepted(shared: Server, origin: str | None) -> None:
    header = b"" if origin is None else f"\r\nOrigin: {origin}".encode()
    with connect(shared[1]) as sock:
        assert upgraded(sock, request().replace(b"\r\nUpgrade", header + b"\r\nUpgrade", 1)).unframer.is_open


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "http://localhost.evil.example", "http://127.0.0.1.evil.example", "null", "",
     "http://localhost@evil.example", "HTTP://LOCALHOST.", "http://localhost:8000/path", "file://", "\xff" * 3,
     "http://localhost\thttps://evil.example"],
)  # fmt: skip
def test_pages_of_other_origins_are_refused(shared: Server, origin: str) -> None:
    request_bytes = request().replace(b"\r\nUpgrade", b"\r\nOrigin: " + origin.encode("latin-1") + b"\r\nUpgrade", 1)
    answer = answer_to(shared[1], request_bytes)
    if origin.isascii():
        assert answer.startswith("HTTP/1.1 403 ")
        assert "relaax-rlx-server.origins" in answer
    else:  # older versions of the library reject it as malformed
        assert answer.startswith(("HTTP/1.1 400 ", "HTTP/1.1 403 "))
    wait_until(lambda: "HTTP 403: Pages of the origin" in shared[0].stderr, "the refusal is logged")


def test_request_with_two_origins_is_refused(shared: Server) -> None:
    twice = b"\r\nOrigin: http://localhost\r\nOrigin: https://evil.example\r\nUpgrade"
    assert answer_to(shared[1], request().replace(b"\r\nUpgrade", twice, 1)).startswith("HTTP/1.1 400 ")


def test_pages_of_listed_origins_are_accepted(serve) -> None:  # type: ignore[no-untyped-def]
    _, address = serve(origins=["https://games.example.org", "null"])
    for origin, status in (
        ("https://games.example.org", "101"),
        ("null", "101"),
        ("https://games.example.org:444", "403"),
        ("http://games.example.org", "403"),
    ):
        request_bytes = request().replace(b"\r\nUpgrade", f"\r\nOrigin: {origin}\r\nUpgrade".encode(), 1)
        with connect(address) as sock:
            sock.sendall(request_bytes)
            assert sock.recv(1 << 16).startswith(f"HTTP/1.1 {status} ".encode()), origin


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "426 ", NO_PAGES),
        (b"GET /metrics HTTP/1.1\r\n\r\n", "426 ", NO_PAGES),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "4", "RLX"),
        (b"CONNECT x:443 HTTP/1.1\r\n\r\n", "4", ""),
        (request().replace(b"GET", b"PUT"), "4", ""),
        (request().replace(b"HTTP/1.1", b"HTTP/1.0"), "", ""),
        (request().replace(b"Version: 13", b"Version: 8"), "400 ", "Sec-WebSocket-Version"),
        (request().replace(b"-Key: ", b"-Key: 0"), "400 ", "Sec-WebSocket-Key"),
        (b"GET / HTTP/1.1\r\nno header\r\n\r\n", "400 ", "HTTP request is malformed"),
        (b"A\r\n\r\n", "400 ", "HTTP request is malformed"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400 ", NO_GRPC),
        (b"HELLO, WORLD\r\n\r\n", "400 ", "HTTP request is malformed"),
        (b"GET /" + b"x" * MAX_REQUEST_BYTES + b" HTTP/1.1\r\n\r\n", "431 ", "longer than"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 3000, "431 ", "longer than"),
    ],
)
def test_other_http_requests_are_refused_with_the_reason(shared: Server, data: bytes, status: str, words: str) -> None:
    answer = answer_to(shared[1], data)
    assert answer.startswith(f"HTTP/1.1 {status}")
    assert words in answer
    assert "101 " not in answer.partition("\r\n")[0]


def test_partial_request_starts_no_worker(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(handshake_timeout=1.0)
    assert answer_to(address, request()[:-1]) == ""
    assert "refused" not in server.stderr


@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_full_server_refuses_over_websocket_with_a_message(serve, codec: str) -> None:  # type: ignore[no-untyped-def]
    """A worker accepts the request and sends the refusal. Over plain TCP, no worker is needed."""
    server, address = serve(max_workers=1)
    with Line(address) as first:
        first.open()
        for _ in range(3):
            with Line(address, codec, websocket=True) as line:
                line.send(make_hello())
                expect_error(line, ErrorCode.OVERLOADED, "no room", 1000)
        wait_until(lambda: len(server.children()) == 1, "the workers that refused have ended")
        workers = server.children()
        with Line(address, codec) as line:
            line.send(make_hello())
            assert "no room" in line.expect(rlx.Error).message
            line.expect_end()
        assert server.children() == workers
        assert answer_to(address, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").startswith("HTTP/1.1 426")
        assert first.init() == 0


def test_text_message_is_refused(line: Line) -> None:
    line.open()
    line.socket.raw.sendall(message(b'{"init":{}}', 1))  # type: ignore[attr-defined]
    expect_error(line, ErrorCode.MALFORMED, "binary messages only", 1003)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x82\x01x", id="not masked"),
        pytest.param(b"\xc2\x81\0\0\0\0x", id="a reserved bit"),
        pytest.param(b"\x83\x81\0\0\0\0x", id="an unknown opcode"),
        pytest.param(message(b"x", 0), id="a continuation without a start"),
        pytest.param(message(b"x", 2, fin=False) + message(b"x", 2), id="two starts"),
        pytest.param(message(b"x" * 126, PING), id="a long ping"),
        pytest.param(message(b"x", PING, fin=False), id="a ping in parts"),
        pytest.param(message(b"\x03", CLOSE), id="half a code"),
        pytest.param(message(struct.pack(">H", 1005), CLOSE), id="a reserved code"),
    ],
)
def test_invalid_websocket_frame_is_refused(line: Line, data: bytes) -> None:
    line.open()
    line.socket.raw.sendall(data)  # type: ignore[attr-defined]
    expect_error(line, ErrorCode.MALFORMED, "invalid WebSocket data", 1002)


def test_close_with_an_invalid_reason_gets_code_1007(line: Line) -> None:
    line.open()
    line.socket.raw.sendall(message(b"\x03\xe8\xff", CLOSE))  # type: ignore[attr-defined]
    expect_error(line, ErrorCode.MALFORMED, "invalid WebSocket data", 1007)


@pytest.mark.parametrize("length", [65_537, 2**20, 2**40, 2**63 - 1])
def test_too_long_message_is_refused_by_its_header(line: Line, length: int) -> None:
    """The message is sent before the welcome, and its body is never sent."""
    line.socket.raw.sendall(message(b"", length=length))  # type: ignore[attr-defined]
    expect_error(line, ErrorCode.FRAME_TOO_LARGE, "the limit is 65536", 1009)


def test_fragments_count_together_towards_the_limit(line: Line) -> None:
    line.open()
    part = bytes(2**19)
    line.socket.raw.sendall(message(part, fin=False) + message(part, 0, fin=False))  # type: ignore[attr-defined]
    line.socket.raw.sendall(message(b"x", 0))  # type: ignore[attr-defined]
    expect_error(line, ErrorCode.FRAME_TOO_LARGE, f"{2**20 + 1} bytes", 1009)


def test_ping_between_fragments_does_not_count(line: Line) -> None:
    """The fragments together reach the limit exactly."""
    line.open()
    first, last = b"x" * (2**20 - 36), b"x" * 36
    ping = message(b"p" * 125, PING)
    line.socket.raw.sendall(message(first, fin=False) + ping + message(last, 0))  # type: ignore[attr-defined]
    expect_error(line, ErrorCode.UNEXPECTED_MESSAGE, "no message", 1000)  # the message was received whole


def test_empty_message_is_malformed(line: Line) -> None:
    line.socket.raw.sendall(message(b""))  # type: ignore[attr-defined]
    expect_error(line, ErrorCode.MALFORMED, "length 0", 1000)


def test_message_before_an_invalid_one_is_answered(line: Line) -> None:
    line.open()
    init = line.connection.send(rlx.Init(line.observation(0)))
    line.socket.raw.sendall(message(init[4:]) + message(b"text", 1))  # type: ignore[attr-defined]
    event = line.receive()
    if isinstance(event, rlx.Actions):  # the invalid message may be noticed before the answer is sent
        event = line.receive()
    assert isinstance(event, rlx.Error)
    assert "binary messages only" in event.message


def test_closed_websocket_ends_the_worker(shared: Server, line: Line) -> None:
    line.open()
    line.init()
    line.socket.raw.sendall(message(struct.pack(">H", 1001), CLOSE))  # type: ignore[attr-defined]
    line.expect_end()
    assert line.websocket is not None
    assert line.websocket.unframer.close_code == 1001
    wait_until(lambda: not shared[0].children(), "the worker has ended")


def test_silent_websocket_ends_with_a_timeout_error(serve) -> None:  # type: ignore[no-untyped-def]
    _, address = serve(handshake_timeout=1.0, idle_timeout=1.0)
    with Line(address, websocket=True) as line:
        expect_error(line, ErrorCode.TIMEOUT, "received no message from the client in time", 1000)
    with Line(address, websocket=True) as line:
        line.open()
        line.init()
        line.socket.raw.sendall(message(b"are you there?", PING))  # type: ignore[attr-defined]  # not an RLX message
        expect_error(line, ErrorCode.TIMEOUT, "received no message from the client in time", 1000)


def test_requests_without_a_hello_do_not_block_new_clients(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(handshake_timeout=300.0, constants={"listening.children.MAX_STALLED": MAX_STALLED})
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_STALLED + 8):
            sock = stack.enter_context(contextlib.closing(connect(address)))
            sock.sendall(request())
        for websocket in (False, True):
            with Line(address, websocket=websocket) as line:
                line.open()
                assert line.init() == 0
        wait_until(lambda: len(server.children()) <= MAX_STALLED, "the oldest workers have ended")
    wait_until(lambda: not server.children(), "all workers have ended")


@pytest.mark.slow
@pytest.mark.parametrize(("count", "addresses"), [(400, 1), (1000, 50)])
def test_new_client_is_served_soon_beside_many_requests(serve, count: int, addresses: int) -> None:  # type: ignore[no-untyped-def]
    _, address = serve(handshake_timeout=300.0)
    with contextlib.ExitStack() as stack:
        for number in range(count):
            source = f"127.0.0.{1 + number % addresses}"
            stack.enter_context(contextlib.closing(connect(address, source))).sendall(request())
        start = time.monotonic()
        with Line(address) as line:
            line.open()
        assert time.monotonic() - start < 5.0
        start = time.monotonic()
        with Line(address, source="127.0.0.60", websocket=True) as line:
            line.open()
        assert time.monotonic() - start < 10.0


def test_token_is_not_logged_at_debug_level(serve, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """The WebSocket library can log every frame at this level."""
    monkeypatch.setenv("RELAAX_TOKEN", TOKEN)
    server, address = serve(log_level="DEBUG")
    for codec in ("protobuf", "json"):
        with Line(address, codec, websocket=True) as line:
            line.open(token=TOKEN)
            assert line.init() == 0
    wait_until(lambda: not server.children(), "the workers have ended")
    assert TOKEN not in server.stderr
    assert TOKEN.encode().hex(" ")[:20] not in server.stderr


def test_websocket_clients_count_towards_max_workers(serve) -> None:  # type: ignore[no-untyped-def]
    _, address = serve(max_workers=1)
    with Line(address, websocket=True) as first, Line(address, websocket=True) as second:
        first.open()
        second.send(make_hello())
        error = second.expect(rlx.Error)
        assert error.code is ErrorCode.OVERLOADED
        assert "has no room for another" in error.message
        assert first.init() == 0


def test_refused_requests_count_as_failed_handshakes(serve, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("RELAAX_TOKEN", TOKEN)  # on loopback, failures count only if the server has a token
    server, address = serve(max_failed_handshakes=3)
    evil = request().replace(b"\r\nUpgrade", b"\r\nOrigin: https://evil.example\r\nUpgrade", 1)
    for _ in range(3):
        assert answer_to(address, evil, "127.0.0.2").startswith("HTTP/1.1 403 ")
    wait_until(lambda: "from 127.0.0.2 failed in a minute" in server.stderr, "the address is blocked")
    with contextlib.suppress(ConnectionError), connect(address, "127.0.0.2") as sock:
        assert b"HTTP" not in sock.recv(1 << 16)
    with Line(address, websocket=True) as line:
        line.open(token=TOKEN)
        assert line.init() == 0
