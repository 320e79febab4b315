"""Channels with TLS and tokens, and the reasons that are reported for failed connections."""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest

from relaax.parameters.calls import authentication_error
from relaax.parameters.interfaces import ParameterServerUnauthenticated
from relaax.server.rlx_server.connection.channel import HttpRefused, WebSocketLayer
from relaax.server.security.certificates import LOCAL, Authority
from relaax.transport.channel import Target, connection_trouble, open_channel
from support.unused_address import unused_address

TOKEN = "a-secret-of-32-characters-or-so"
HERE, OTHER = Authority(30), Authority(30)
SERVER, WORKER = HERE.issue("server", LOCAL), HERE.issue("worker")


class Echo(grpc.GenericRpcHandler):
    """A service that answers with the authorization that it received."""

    def service(self, handler_call_details):  # type: ignore[no-untyped-def]
        shown = dict(handler_call_details.invocation_metadata).get("authorization", "none").encode()
        if handler_call_details.method == "/test/Stream":
            return grpc.stream_stream_rpc_method_handler(lambda requests, context: (shown for _ in requests))
        return grpc.unary_unary_rpc_method_handler(lambda request, context: shown)


@contextlib.contextmanager
def serving(credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(2), [Echo()])
    place = "127.0.0.1:0"
    port = server.add_secure_port(place, credentials) if credentials else server.add_insecure_port(place)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


def tls(pair: tuple[bytes, bytes] = SERVER, clients: bytes | None = None) -> grpc.ServerCredentials:
    certificate, key = pair
    return grpc.ssl_server_credentials([(key, certificate)], clients, clients is not None)


def asked(target: Target) -> bytes:
    with open_channel(target) as channel:
        answer: bytes = channel.unary_unary("/test/Unary")(b"", timeout=20)
        return answer


def refused(target: Target) -> str:
    with pytest.raises(grpc.RpcError) as error:
        asked(target)
    found = authentication_error(error.value, target)
    assert isinstance(found, ParameterServerUnauthenticated)
    assert TOKEN not in str(found)
    return str(found)


def test_every_call_sends_the_token() -> None:
    with serving() as address, open_channel(Target(address, TOKEN)) as channel:
        shown = f"Bearer {TOKEN}".encode()
        assert channel.unary_unary("/test/Unary")(b"", timeout=20) == shown
        assert channel.unary_unary("/test/Unary").future(b"", timeout=20).result() == shown
        assert list(channel.stream_stream("/test/Stream")(iter([b"", b""]), timeout=20)) == [shown, shown]


def test_calls_without_a_token_send_no_authorization() -> None:
    with serving() as address:
        assert asked(Target(address)) == b"none"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_certificate_is_valid_for_each_of_its_names(host: str) -> None:
    with serving(tls()) as address:
        assert (
            asked(Target(f"{host}:{address.rpartition(':')[2]}", TOKEN, HERE.certificate))
            == b"Bearer " + TOKEN.encode()
        )


def test_a_server_may_require_client_certificates() -> None:
    with serving(tls(clients=HERE.certificate)) as address:
        assert asked(Target(address, "", HERE.certificate, *WORKER)) == b"none"


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (OTHER.issue("server", LOCAL), "cannot be trusted"),
        (HERE.issue("server", LOCAL, days=-1), "has expired"),
        (HERE.issue("server", ["elsewhere.example"]), "127.0.0.1"),
    ],
    ids=["another authority", "expired", "another name"],
)
def test_a_server_with_a_wrong_certificate_is_refused(server: tuple[bytes, bytes], says: str) -> None:
    with serving(tls(server)) as address:
        assert says in refused(Target(address, TOKEN, HERE.certificate))


@pytest.mark.parametrize(
    "worker",
    [(None, None), OTHER.issue("worker"), HERE.issue("worker", days=-1)],
    ids=["none", "another authority", "expired"],
)
def test_a_rejected_client_certificate_is_reported(worker: tuple[bytes | None, bytes | None]) -> None:
    with serving(tls(clients=HERE.certificate)) as address:
        assert "no certificate, or one that it does not accept" in refused(
            Target(address, TOKEN, HERE.certificate, *worker)
        )


def test_tls_on_one_side_only_is_reported() -> None:
    with serving() as address:
        assert "does not speak TLS" in refused(Target(address, TOKEN, HERE.certificate))
    with serving(tls()) as address:
        assert "it uses TLS" in refused(Target(address, TOKEN))


@pytest.mark.parametrize("ca", [None, HERE.certificate])
def test_an_unreachable_server_is_no_authentication_error(ca: bytes | None) -> None:
    with unused_address() as address:
        target = Target(address, TOKEN, ca)
        with pytest.raises(grpc.RpcError) as error:
            asked(target)
        assert authentication_error(error.value, target) is None
    assert authentication_error(ValueError(), target) is None


@contextlib.contextmanager
def handling(handler: type[socketserver.BaseRequestHandler]) -> Iterator[str]:
    """Serve TCP with this handler. Yield the address."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class Disconnecting(socketserver.BaseRequestHandler):
    """A server that is ending: it shuts down its side of the connection, and then resets the connection."""

    client_is_connected = threading.Semaphore(0)

    def handle(self) -> None:
        assert self.client_is_connected.acquire(timeout=20)
        self.request.shutdown(socket.SHUT_WR)
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.request.close()


@pytest.mark.parametrize("ca", [None, HERE.certificate])
def test_disconnect_before_the_handshake_means_unreachable(ca: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error must not be about certificates, because that would end the training."""
    connect = socket.create_connection

    def connect_and_wait(address: tuple[str, int], timeout: float) -> socket.socket:
        connected = connect(address, timeout)
        Disconnecting.client_is_connected.release()
        until_reset = select.poll()
        until_reset.register(connected, select.POLLERR)
        assert until_reset.poll(20_000)
        return connected

    monkeypatch.setattr(socket, "create_connection", connect_and_wait)
    with handling(Disconnecting) as address:
        assert connection_trouble(Target(address, TOKEN, ca)) is None


def test_secrets_are_not_shown() -> None:
    target = Target("here:1", TOKEN, b"authority", b"certificate", b"the key")
    assert repr(target.at("there:2")) == "Target(address='there:2')"
    assert target.at("there:2").token == TOKEN


class AsRlxServer(socketserver.BaseRequestHandler):
    """A server that answers HTTP requests as an RLX server does."""

    def handle(self) -> None:
        layer = WebSocketLayer(())
        with contextlib.suppress(HttpRefused):
            layer.decode(self.request.recv(1 << 16), 1 << 16)
        self.request.sendall(layer.to_send())


def test_error_for_a_server_without_grpc_names_the_key() -> None:
    with handling(AsRlxServer) as address:
        assert refused(Target(address)) == (
            f"parameter server {address}: it does not support gRPC: relaax-rlx-server.parameter_server names the port "
            "of another server, perhaps that of an RLX server"
        )
