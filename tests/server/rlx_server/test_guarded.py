"""Tests of an RLX server with a token and TLS: which clients are served, and how others are refused."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax import rlx
from relaax.client import Client, Failure
from relaax.conformance.websocket import request
from relaax.rlx import ErrorCode
from relaax.tls import client_context
from support.keys import OTHER_TOKEN, Keys, unknown_authority
from support.offline import start_offline_server
from support.offline_algorithm import SLOW
from support.processes import Processes, Running, wait_until
from support.rlx_line import PATIENCE, Line
from support.rlx_pair import make_hello

pytestmark = pytest.mark.checks("relaax/server", "relaax/rlx")

over_tcp_and_websocket = pytest.mark.parametrize("websocket", [False, True], ids=["tcp", "websocket"])
Server = tuple[Running, str]
MAX_STALLED = 16
"""Workers that may wait for their clients, instead of 64."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "made")


@pytest.fixture(scope="module")
def guarded(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server with a token and TLS that does not block addresses for failed handshakes."""
    folder = tmp_path_factory.mktemp("guarded")
    with Processes(folder) as processes:
        yield start_offline_server(
            processes, folder, heartbeat=0.2, max_failed_handshakes=10_000, handshake_timeout=5.0, **keys.rlx_port()
        )


@over_tcp_and_websocket
@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_client_with_token_is_served_over_tls(guarded: Server, keys: Keys, codec: str, websocket: bool) -> None:
    _, address = guarded
    with Line(address, codec, tls=keys.context(), websocket=websocket) as line:
        line.open(token=keys.token, environments=2)
        assert line.init() == 0
        assert line.step() == 0
        line.send(rlx.Reset(np.array([3.0, 4.0])))
        assert line.expect(rlx.EpisodeReturns).episode_return.tolist() == [4.0, 5.0]
        line.send(rlx.Bye("done"))
        line.expect_end()


def test_client_library_connects_to_a_wss_address(guarded: Server, keys: Keys) -> None:
    _, address = guarded
    spaces: dict[str, Any] = {"observation_space": rlx.Box(shape=(2,)), "action_space": rlx.Discrete(3)}
    with Client(f"wss://{address}/rlx", token=keys.token, tls_ca=keys.path("ca.pem"), **spaces) as client:
        assert client.init([0.0, 0.0]) == 0
        assert client.reset(1.0) == 1.0
    with (
        Client(f"wss://{address}", token=keys.token, retry_seconds=0, **spaces) as client,
        pytest.raises(Failure, match="its certificate cannot be trusted"),
    ):
        client.connect()


@over_tcp_and_websocket
def test_long_messages_and_heartbeats_pass_over_tls(guarded: Server, keys: Keys, websocket: bool) -> None:
    _, address = guarded
    with Line(address, tls=keys.context(), websocket=websocket) as line:
        line.open(token=keys.token, observation_space=rlx.Box(-np.inf, np.inf, (300_000,), "float32"))
        assert line.init(SLOW) == 0
        assert line.pings >= 2
        for _ in range(5):
            line.step(0)


@pytest.mark.parametrize(
    ("token", "message"), [("", "the client sent none"), (OTHER_TOKEN, "is not valid for this server")]
)
@pytest.mark.parametrize("codec", ["protobuf", "json"])
@over_tcp_and_websocket
def test_client_without_the_token_is_refused(
    guarded: Server, keys: Keys, token: str, message: str, codec: str, websocket: bool
) -> None:
    server, address = guarded
    with Line(address, codec, tls=keys.context(), websocket=websocket) as line:
        line.send(make_hello(token=token))
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.UNAUTHENTICATED
        assert message in error.message
        assert not error.retryable
        line.expect_end()
    refusal = "refused a client at an unnamed host: "
    wait_until(lambda: message in server.stderr.rpartition(refusal)[2], "the refusal is logged with its reason")
    assert OTHER_TOKEN not in server.stderr
    assert keys.token not in server.stderr


@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_plain_rlx_on_a_tls_port_gets_a_plain_error(guarded: Server, keys: Keys, codec: str) -> None:
    server, address = guarded
    with Line(address, codec) as line:
        line.send(make_hello(token=keys.token))
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.MALFORMED
        assert "this port uses TLS" in error.message
        assert not error.retryable
        line.expect_end()
    assert keys.token not in server.stderr


@pytest.mark.parametrize(
    ("data", "prefix"),
    [(b"\xff" * 5, b"\0\0"), (b"GET / HTTP/1.1\r\n", b"HTTP/1.1 400 "), (request(), b"HTTP/1.1 400 ")],
)
def test_other_plain_bytes_on_a_tls_port_get_a_plain_error(guarded: Server, data: bytes, prefix: bytes) -> None:
    """An HTTP request gets an HTTP error, so that its client does not send a token in plain text."""
    _, address = guarded
    with Line(address) as line:
        line.socket.sendall(data)
        answer = b""
        while piece := line.socket.recv(1 << 16):
            answer += piece
        assert answer.startswith(prefix)
        assert b"his port uses TLS" in answer


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", request()[:-2] + b"Origin: https://a.b\r\n\r\n"]
)
def test_request_sent_with_the_end_of_the_handshake_is_refused(guarded: Server, keys: Keys, data: bytes) -> None:
    """Browsers send their request with the last TLS message. It is refused as any other."""
    server, address = guarded
    sock, tls, incoming, outgoing = start_tls_handshake(address, keys)
    with sock:
        while True:
            incoming.write(sock.recv(1 << 16))
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
        tls.write(data)
        sock.sendall(outgoing.read())
        answer = b""
        while piece := sock.recv(1 << 16):
            incoming.write(piece)
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                while part := tls.read(1 << 16):
                    answer += part
    assert answer.startswith((b"HTTP/1.1 426 ", b"HTTP/1.1 403 "))
    wait_until(
        lambda: f"refused a client before its hello: HTTP {answer[9:12].decode()}" in server.stderr,
        "the refusal is logged",
    )
    assert "Traceback" not in server.stderr


def test_tls_on_a_plain_port_is_refused_with_the_reason(shared: Server, keys: Keys) -> None:
    server, address = shared
    with pytest.raises(ssl.SSLError):
        Line(address, tls=keys.context())
    wait_until(lambda: "this port does not use TLS" in server.stderr, "the reason is logged")


def test_client_that_rejects_the_certificate_is_logged(guarded: Server) -> None:
    server, address = guarded
    authority, _ = unknown_authority()
    with pytest.raises(ssl.SSLCertVerificationError):
        Line(address, tls=client_context(authority.certificate.decode()))
    wait_until(lambda: "does not accept this server's certificate" in server.stderr, "the reason is logged")


def test_old_versions_of_tls_are_refused(guarded: Server, keys: Keys) -> None:
    _, address = guarded
    context = keys.context()
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        Line(address, tls=context)


def test_stalled_tls_handshakes_do_not_block_new_clients(serve, keys: Keys) -> None:  # type: ignore[no-untyped-def]
    """Each client sends only a ClientHello, so that a worker waits for it."""
    server, address = serve(
        handshake_timeout=300.0, constants={"listening.children.MAX_STALLED": MAX_STALLED}, **keys.rlx_port()
    )
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_STALLED + 8):
            stack.enter_context(contextlib.closing(start_tls_handshake(address, keys)[0]))
        with Line(address, tls=keys.context()) as line:
            line.open(token=keys.token)
            assert line.init() == 0
        wait_until(lambda: len(server.children()) <= MAX_STALLED, "the oldest workers have ended")
    wait_until(lambda: not server.children(), "all workers have ended")


@pytest.mark.parametrize("worker_start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@over_tcp_and_websocket
def test_early_tls_handshake_does_not_bypass_max_workers(  # type: ignore[no-untyped-def]
    serve, keys: Keys, websocket: bool
) -> None:
    _, address = serve(max_workers=1, handshake_timeout=100.0, **keys.rlx_port())
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(Line(address, tls=keys.context(), websocket=websocket)) for _ in range(3)]
        first, *others = lines
        first.open(token=keys.token)
        for line in others:
            line.send(make_hello(token=keys.token))
            error = line.expect(rlx.Error)
            assert error.code is ErrorCode.OVERLOADED
            assert "has no room for another" in error.message
        assert first.init() == 0


def start_tls_handshake(address: str, keys: Keys) -> tuple[socket.socket, ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """Connect and send only a ClientHello; return the socket, its TLS object, and the TLS input and output."""
    host, _, port = address.rpartition(":")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = keys.context().wrap_bio(incoming, outgoing, server_hostname=host)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    connected = socket.create_connection((host, int(port)), timeout=PATIENCE)
    connected.sendall(outgoing.read())
    return connected, tls, incoming, outgoing


def test_address_with_repeated_failures_is_refused_alone(serve, keys: Keys) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(max_failed_handshakes=3, token_file=keys.path("token"))
    for _ in range(3):
        with Line(address, source="127.0.0.2") as line:
            line.send(make_hello(token=OTHER_TOKEN))
            assert line.expect(rlx.Error).code is ErrorCode.UNAUTHENTICATED
    wait_until(lambda: "from 127.0.0.2 failed in a minute" in server.stderr, "the address is blocked")
    refusals = server.stderr.count("refused a client")
    for _ in range(5):
        with Line(address, source="127.0.0.2") as line:
            error = line.expect(rlx.Error)  # the client has sent no bytes
            assert error.code is ErrorCode.OVERLOADED
            assert error.retryable
            assert error.retry_after_seconds == 60
    assert server.stderr.count("refused a client") == refusals
    with Line(address) as line:
        line.open(token=keys.token)
        assert line.init() == 0


@pytest.mark.parametrize("worker_start", ["spawn"])
@pytest.mark.slow
@over_tcp_and_websocket
def test_spawned_worker_requires_tls_and_token(serve, keys: Keys, websocket: bool) -> None:  # type: ignore[no-untyped-def]
    _, address = serve(**keys.rlx_port())
    with Line(address, tls=keys.context(), websocket=websocket) as line:
        line.open(token=keys.token)
        assert line.init() == 0
    with Line(address, tls=keys.context()) as line:
        line.send(make_hello(token=OTHER_TOKEN))
        assert line.expect(rlx.Error).code is ErrorCode.UNAUTHENTICATED


def test_token_from_the_environment_variable_is_required(  # type: ignore[no-untyped-def]
    serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RELAAX_TOKEN", OTHER_TOKEN)
    server, address = serve()
    with Line(address) as line:
        line.open(token=OTHER_TOKEN)
        assert line.init() == 0
    with Line(address) as line:
        line.send(make_hello())
        assert line.expect(rlx.Error).code is ErrorCode.UNAUTHENTICATED
    assert OTHER_TOKEN not in server.stderr
