"""Clients over TLS: what they check, what they say, and that they do not come back where it cannot help."""

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
HERE = Authority(30)


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    path.write_bytes(HERE.certificate)
    return path


class Door:
    """Counts who comes, and agrees on TLS with whoever wants to."""

    def __init__(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        self.came = 0
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self._listener, self._context = listener, context

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self._listener.accept()
                self.came += 1
                with connected, contextlib.suppress(OSError):
                    connected.settimeout(20)
                    if self._context is None:
                        connected.recv(1 << 16)
                        connected.sendall(b"SSH-2.0-something\r\n")
                    else:
                        self._context.wrap_socket(connected, server_side=True).close()


@contextlib.contextmanager
def door(tmp_path: Path, pair: tuple[bytes, bytes] | None) -> Iterator[Door]:
    context = None
    if pair is not None:
        for name, content in zip(("certificate", "key"), pair, strict=True):
            (tmp_path / name).write_bytes(content)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Door(listener, context)
        thread = threading.Thread(target=made.serve)
        thread.start()
        try:
            yield made
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(20)


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        (Authority(30).issue("server", LOCAL), "its certificate cannot be trusted: unable to get local issuer"),
        (HERE.issue("server", LOCAL, days=-1), "its certificate cannot be trusted: certificate has expired"),
        (HERE.issue("server", ["elsewhere.example"]), "not valid for '127.0.0.1'"),
        (None, "it does not speak TLS; leave out --tls, tls=True and RELAAX_TLS to connect without it"),
    ],
    ids=["another authority", "expired", "another name", "no TLS"],
)
def test_a_server_that_cannot_be_trusted_is_left_for_good(
    tmp_path: Path, ca: Path, pair: tuple[bytes, bytes] | None, says: str
) -> None:
    with (
        door(tmp_path, pair) as opened,
        Client(opened.address, **SPACES, tls_ca=ca, token="a secret") as client,  # type: ignore[arg-type]
        pytest.raises(Failure) as failure,
    ):
        client.connect()
    assert says in str(failure.value)
    assert "a secret" not in str(failure.value)
    assert opened.came == 1


@pytest.mark.slow
def test_a_server_that_ends_during_the_handshake_may_come_back(tmp_path: Path, ca: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def hang_up() -> None:
            for _ in range(2):
                listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        client = Client(f"127.0.0.1:{port}", **SPACES, tls_ca=ca, retry_seconds=0.5)  # type: ignore[arg-type]
        with client, pytest.raises(Failure, match="no TLS with"):
            client.connect()
        with contextlib.suppress(OSError):  # where it came only once
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        thread.join(20)


def test_the_authority_of_the_environment_counts(tmp_path: Path, ca: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAAX_TLS_CA", str(ca))
    with door(tmp_path, HERE.issue("server", LOCAL)) as opened:
        client = Client(opened.address, **SPACES, retry_seconds=0.0)  # type: ignore[arg-type]
        with client, pytest.raises(Failure) as failure:
            client.connect()
    assert "certificate" not in str(failure.value)  # it was good; this server has no more to say


def test_a_file_that_holds_no_authority_is_a_mistake_at_once(tmp_path: Path) -> None:
    (tmp_path / "nothing.pem").write_text("nothing", encoding="ascii")
    for name in ("nothing.pem", "nowhere.pem"):
        with pytest.raises(ValueError, match=f"tls_ca .*{name}: cannot read a certificate"):
            Client("127.0.0.1:7001", **SPACES, tls_ca=tmp_path / name)  # type: ignore[arg-type]
