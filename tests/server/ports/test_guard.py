"""The token of a parameter server, and the refusal of calls without it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest

from relaax.server.parameter_server.command.credentials import SENTENCES
from relaax.server.ports.guard import LOGGED, NO_TOKEN, OPEN, WRONG_TOKEN, Guard, Refusals, host_of
from relaax.server.security.strikes import MAX_ADDRESSES, Strikes, network_of
from relaax.server.security.tokens import Token
from relaax.transport.channel import Target, open_channel

TOKEN, WRONG = "the-secret-of-this-server", "the-secret-of-another-one"


class Methods(grpc.GenericRpcHandler):
    """Methods that record the messages that they read."""

    def __init__(self) -> None:
        self.read: list[bytes] = []

    def _record(self, data: bytes) -> bytes:
        self.read.append(data)
        return data

    def service(self, handler_call_details):  # type: ignore[no-untyped-def]
        if handler_call_details.method == "/test/Stream":
            return grpc.stream_stream_rpc_method_handler(
                lambda messages, context: messages, request_deserializer=self._record
            )
        return grpc.unary_unary_rpc_method_handler(lambda message, context: b"ok", request_deserializer=self._record)


@pytest.fixture
def guarded() -> Iterator[tuple[Refusals, Methods, str]]:
    refusals, methods = Refusals(), Methods()
    server = grpc.server(futures.ThreadPoolExecutor(2), [methods], [Guard(Token(TOKEN), refusals, SENTENCES)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield refusals, methods, f"127.0.0.1:{port}"
    server.stop(0).wait()


def error_of(address: str, token: str, method: str = "/test/Unary", data: bytes = b"x") -> tuple[grpc.StatusCode, str]:
    with open_channel(Target(address, token), 10_000_000) as channel, contextlib.ExitStack() as caught:
        error = caught.enter_context(pytest.raises(grpc.RpcError))
        if method == "/test/Stream":
            list(channel.stream_stream(method)(iter([data, data]), timeout=20))
        else:
            channel.unary_unary(method)(data, timeout=20)
    return error.value.code(), error.value.details()


@pytest.mark.parametrize("method", ["/test/Unary", "/test/Stream"])
@pytest.mark.parametrize(("token", "text"), [("", "but the call has none"), (WRONG, "is not this parameter server's")])
def test_call_without_the_token_is_not_read(guarded, method: str, token: str, text: str) -> None:  # type: ignore[no-untyped-def]
    refusals, methods, address = guarded
    code, sentence = error_of(address, token, method, bytes(2**20))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert text in sentence
    assert TOKEN not in sentence
    assert methods.read == []
    assert refusals.counts == {WRONG_TOKEN if token else NO_TOKEN: 1}


def test_call_with_the_token_is_read(guarded) -> None:  # type: ignore[no-untyped-def]
    refusals, methods, address = guarded
    with open_channel(Target(address, TOKEN)) as channel:
        assert channel.unary_unary("/test/Unary")(b"a", timeout=20) == b"ok"
        assert list(channel.stream_stream("/test/Stream")(iter([b"b"]), timeout=20)) == [b"b"]
    assert methods.read == [b"a", b"b"]
    assert refusals.counts == {}


def test_health_check_needs_no_token(guarded) -> None:  # type: ignore[no-untyped-def]
    _, _, address = guarded
    with open_channel(Target(address)) as channel:
        for method in OPEN:
            assert channel.unary_unary(method)(b"", timeout=20) == b"ok"


def test_repeated_refusals_are_counted_but_logged_less(  # type: ignore[no-untyped-def]
    guarded, caplog: pytest.LogCaptureFixture
) -> None:
    refusals, _, address = guarded
    caplog.set_level(logging.WARNING)
    with open_channel(Target(address, WRONG)) as channel:
        for _ in range(2 * LOGGED):
            with pytest.raises(grpc.RpcError):
                channel.unary_unary("/test/Unary")(b"", timeout=20)
    assert refusals.counts == {WRONG_TOKEN: 2 * LOGGED}
    assert len(caplog.records) == LOGGED
    assert "not logged for a minute" in caplog.text
    assert WRONG not in caplog.text


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.1:5000", "10.0.0.1"),
        ("ipv6:%5B::1%5D:5000", "::1"),
        ("ipv6:[fe80::1]:1", "fe80::1"),
        ("unix:", "unix:"),
    ],
)
def test_host_of_a_peer(peer: str, host: str) -> None:
    assert host_of(peer) == host


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix:", "unix:"),
    ],
)
def test_failures_are_counted_by_network(host: str, network: str) -> None:
    assert network_of(host) == network


def test_number_of_recorded_addresses_is_bounded() -> None:
    strikes = Strikes(2)
    assert not strikes.add("10.0.0.1")
    assert not strikes.is_blocked("10.0.0.1")
    assert strikes.add("10.0.0.1")
    assert strikes.is_blocked("10.0.0.1")
    assert not strikes.add("10.0.0.1")
    assert not strikes.is_blocked("10.0.0.2")
    for i in range(MAX_ADDRESSES):
        strikes.add(f"10.1.{i // 256}.{i % 256}")
    assert not strikes.is_blocked("10.0.0.1")
