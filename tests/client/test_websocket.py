import base64
import contextlib
import hashlib
import re
import socket
import subprocess
import sys
import threading

import pytest

from relaax import rlx
from relaax.client import Client
from relaax.client.connection.address import Endpoint, parse_endpoint
from relaax.client.connection.failure import ConnectionInterrupted
from relaax.client.connection.wire import ClientWire

SPACES = {"observation_space": rlx.Box(shape=(1,)), "action_space": rlx.Discrete(2)}
WELCOME = (
    b'{"welcome":{"protocolVersion":1,"limits":{"maxFrameBytes":1000,"idleTimeoutSeconds":9,"heartbeatSeconds":1}}}'
)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("localhost", Endpoint("localhost", 7001)),
        ("localhost:1", Endpoint("localhost", 1)),
        ("ws://localhost", Endpoint("localhost", 80, "/")),
        ("wss://localhost/", Endpoint("localhost", 443, "/", True)),
        ("ws://[::1]:7001", Endpoint("::1", 7001, "/")),
        ("wss://a.example:7001/rlx?room=%20", Endpoint("a.example", 7001, "/rlx?room=%20", True)),
    ],
)
def test_websocket_address_gives_host_port_and_path(address, expected):
    assert parse_endpoint(address) == expected


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("http://localhost", "'/'"),
        ("ws://", "has no host"),
        ("ws:///rlx", "has no host"),
        ("ws://localhost:0/", "number from 1"),
        ("ws://me:secret@localhost/", "'@'"),
        ("ws://localhost/a b", "%20"),
        ("ws://localhost/\n", "%0A"),
        ("ws://localhost/é", "%E9"),
        ("ws://localhost/#a", "%23"),
        ("ws://localhost?room=1", "a / between the host and '?'"),
        ("ws://localhost:7001#a", "a / between the host and '#'"),
        ("WS://localhost", "'/'"),
    ],
)
def test_invalid_websocket_address_is_refused_with_the_way_out(address, hint):
    with pytest.raises(ValueError, match=re.escape(hint)) as refused:
        parse_endpoint(address)
    assert repr(address) in str(refused.value)


@pytest.mark.parametrize("variables", [{"RELAAX_TLS": "1"}, {}])
@pytest.mark.parametrize("address", ["ws://localhost", "localhost:1,wss://localhost,ws://localhost"])
def test_ws_address_is_refused_if_tls_is_required(address, variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=re.escape("address 'ws://localhost' does not use TLS, but TLS is required")):
        Client(address, tls=None if variables else True, **SPACES)


def test_missing_websockets_library_fails_before_connecting():
    code = "import sys; sys.modules['websockets'] = None; from relaax import rlx; from relaax.client import Client\n"
    code += "Client('ws://localhost', observation_space=rlx.Box(shape=(1,)), action_space=rlx.Discrete(2))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "websockets is not installed; pip install 'relaax[websocket]'" in answer.stderr


class ScriptedServer:
    """A server that accepts one connection, answers its request, and sends one of `messages` after each message."""

    def __init__(self, answer=None, messages=()):
        self._answer, self._messages = answer, messages
        self.listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        sock, _ = self.listener.accept()
        with sock:
            request = b""
            while b"\r\n\r\n" not in request:
                request += sock.recv(4096)
            sock.sendall(upgrade_response(request) if self._answer is None else self._answer)
            for data in self._messages:
                sock.recv(4096)
                sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while sock.recv(4096):
                    pass

    def wire(self):
        port = self.listener.getsockname()[1]
        return ClientWire("127.0.0.1", port, codec="json", connect_timeout=20.0, response_timeout=20.0, path="/rlx")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._thread.join(20)
        self.listener.close()


def upgrade_response(request):
    """Return the response of RFC 6455, section 4.2.2."""
    assert request.startswith(b"GET /rlx HTTP/1.1\r\n")
    assert b"Origin" not in request
    key = re.search(rb"Sec-WebSocket-Key: (.*)\r\n", request)[1]
    digest = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    return (
        b"HTTP/1.1 101 .\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + digest + b"\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("answer", "sentence", "retryable"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\n\r\nNot here.", "no WebSocket: HTTP 403: Not here.", False),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "HTTP 404: Not Found", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\x1b[", "HTTP 200: OK", False),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "HTTP 503: Busy", True),
        (b"HTTP/1.1 101 .\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "Sec-WebSocket-Accept", False),
        (b"\0\0\0\x05hello, world\r\n", "no WebSocket", False),
        (b"", "no WebSocket", True),
        (b"HTTP/1.1 101", "no WebSocket", True),
    ],
)
def test_answer_that_is_no_websocket_is_refused(answer, sentence, retryable):
    with ScriptedServer(answer) as server:
        with pytest.raises(ConnectionInterrupted, match=re.escape(sentence)) as raised:
            server.wire()
        assert raised.value.retryable is retryable


def framed(payload, first=0x82):
    """Return an unmasked frame with a length field of at most 2 bytes."""
    head = bytes([first, len(payload)]) if len(payload) < 126 else bytes([first, 126]) + len(payload).to_bytes(2, "big")
    return head + payload


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (framed(b"{}", 0x81), "binary messages only"),
        (b"\x82\x80\0\0\0\0", "invalid WebSocket data"),
        (b"\x82\x7f" + (1001).to_bytes(8, "big"), "a frame of 1001 bytes; the limit is 1000"),
        (framed(b""), "length 0"),
        (framed(b"\x03\xe8bye", 0x88), "the server closed the connection"),
        (b"", "the server closed the connection"),
    ],
)
def test_invalid_server_data_ends_the_connection(data, sentence):
    with ScriptedServer(messages=[framed(WELCOME), data]) as server:
        wire = server.wire()
        try:
            wire.send(rlx.Hello(**SPACES, environments=1, autoreset=[rlx.Autoreset.DISABLED]))
            assert isinstance(wire.receive(), rlx.Welcome)
            wire.send(rlx.Ping(1))
            with pytest.raises(ConnectionInterrupted, match=re.escape(sentence)):
                wire.receive()
        finally:
            wire.close()


def test_fragmented_message_with_a_ping_is_received():
    answer = framed(b'{"pong":', 0x02) + framed(b"still there?", 0x89) + framed(b'{"nonce":1}}', 0x80)
    with ScriptedServer(messages=[framed(WELCOME), answer]) as server:
        wire = server.wire()
        wire.send(rlx.Hello(**SPACES, environments=1, autoreset=[rlx.Autoreset.DISABLED]))
        assert isinstance(wire.receive(), rlx.Welcome)
        wire.send(rlx.Ping(1))
        assert wire.receive() == rlx.Pong(1)
        wire.close_with_bye()
