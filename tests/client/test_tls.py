"""Tests of clients over TLS: which certificates they accept, their errors, and which failures they retry."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from relaax import rlx
from relaax.client import Client, Failure
from relaax.server.security.certificates import LOCAL, Authority

pytestmark = pytest.mark.checks("relaax/client")

SPACES = {"observation_space": rlx.Box(-1, 1, (3,)), "action_space": rlx.Discrete(2)}
AUTHORITY = Authority(30)


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    path.write_bytes(AUTHORITY.certificate)
    return path


class TlsPort:
    """A port that counts its connections and makes a TLS handshake with each."""

    def __init__(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        self.accepted = 0
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self._listener, self._context = listener, context

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self._listener.accept()
                self.accepted += 1
                with connected, contextlib.suppress(OSError):
                    connected.settimeout(20)
                    if self._context is None:
                        connected.recv(1 << 16)
                        connected.sendall(b"SSH-2.0-something\r\n")
                    else:
                        self._context.wrap_socket(connected, server_side=True).close()


@contextlib.contextmanager
def tls_port(tmp_path: Path, pair: tuple[bytes, bytes] | None) -> Iterator[TlsPort]:
    context = None
    if pair is not None:
        for name, content in zip(("certificate", "key"), pair, strict=True):
            (tmp_path / name).write_bytes(content)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = TlsPort(listener, context)
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(20)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (Authority(30).issue("server", LOCAL), "its certificate cannot be trusted: unable to get local issuer"),
        (AUTHORITY.issue("server", LOCAL, days=-1), "its certificate cannot be trusted: certificate has expired"),
        (AUTHORITY.issue("server", ["elsewhere.example"]), "not valid for '127.0.0.1'"),
        (None, "it does not speak TLS; leave out --tls, tls=True and RELAAX_TLS to connect without it"),
    ],
    ids=["another authority", "expired", "another name", "no TLS"],
)
def test_untrusted_server_fails_without_a_retry(
    tmp_path: Path, ca: Path, pair: tuple[bytes, bytes] | None, message: str
) -> None:
    with (
        tls_port(tmp_path, pair) as port,
        Client(port.address, **SPACES, tls_ca=ca, token="a secret") as client,  # type: ignore[arg-type]
        pytest.raises(Failure) as failure,
    ):
        client.connect()
    assert message in str(failure.value)
    assert "a secret" not in str(failure.value)
    assert port.accepted == 1


@pytest.mark.slow
def test_connection_closed_in_the_tls_handshake_is_retried(tmp_path: Path, ca: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]

        def close_two() -> None:
            for _ in range(2):
                listener.accept()[0].close()

        thread = threading.Thread(target=close_two)
        thread.start()
        client = Client(f"127.0.0.1:{number}", **SPACES, tls_ca=ca, retry_seconds=0.5)  # type: ignore[arg-type]
        with client, pytest.raises(Failure, match="no TLS with"):
            client.connect()
        with contextlib.suppress(OSError):  # if the client connected only once
            socket.create_connection(("127.0.0.1", number), timeout=5).close()
        thread.join(20)


def test_authority_of_the_environment_variable_is_trusted(
    tmp_path: Path, ca: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAAX_TLS_CA", str(ca))
    with tls_port(tmp_path, AUTHORITY.issue("server", LOCAL)) as port:
        client = Client(port.address, **SPACES, retry_seconds=0.0)  # type: ignore[arg-type]
        with client, pytest.raises(Failure) as failure:
            client.connect()
    assert "certificate" not in str(failure.value)  # the certificate is accepted; the server only closes


def test_file_without_a_certificate_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "nothing.pem").write_text("nothing", encoding="ascii")
    for name in ("nothing.pem", "nowhere.pem"):
        with pytest.raises(ValueError, match=f"tls_ca .*{name}: cannot read a certificate"):
            Client("127.0.0.1:7001", **SPACES, tls_ca=tmp_path / name)  # type: ignore[arg-type]
