"""Connections of the gRPC port: those that do nothing go, and those of workers stay."""

from __future__ import annotations

import contextlib
import logging
import socket

import pytest

from relaax.server.ports import connections
from relaax.server.ports.connections import _End, _end_of, _first_to_close, _GrpcConnection
from relaax.server.security import strikes as disconnection_log
from relaax.transport.process_resources import allow_descriptors
from support.parameter_servers import Running, gradient, parameter_client, registration, running
from support.processes import wait_until
from support.raw_grpc import CHECK, RawCaller

PATIENCE = 60.0
MANY = 1000


def idle(stack: contextlib.ExitStack, server: Running, count: int, source: str = "127.0.0.1") -> list[socket.socket]:
    """Connections that say nothing."""
    host, _, port = server.address.rpartition(":")
    return [
        stack.enter_context(socket.create_connection((host, int(port)), PATIENCE, source_address=(source, 0)))
        for _ in range(count)
    ]


def is_over(connection: socket.socket) -> bool:
    """Whether the other side ends it, in a minute at most."""
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def closed(server: Running, why: str) -> int:
    return server.server.protection.connections.closed[why]


def counts(server: Running) -> dict[str, int]:
    return server.server.protection.connections.counts


@pytest.mark.slow
@pytest.mark.checks("relaax/server/ports")
def test_a_thousand_connections_that_say_nothing_are_closed_and_a_worker_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    allow_descriptors()
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 0.5)
    caplog.set_level(logging.WARNING, disconnection_log.__name__)
    with running() as server, parameter_client(server.address) as client, contextlib.ExitStack() as stack:
        client.register(registration())
        client.pull()
        crowd = idle(stack, server, MANY)
        client.push(gradient(1), env_steps=1)
        assert all(is_over(connection) for connection in crowd)
        wait_until(lambda: counts(server) == {"proven": 1, "strange": 0}, "the worker's is left", PATIENCE)
        client.push(gradient(1), env_steps=1)
        assert server.version == 2
        wait_until(lambda: "a connection without a call for 0.5 s" in caplog.text, "it is told", PATIENCE)
        assert closed(server, "silent") >= MANY
        assert counts(server) == {"proven": 1, "strange": 0}, "it is the same one"
    assert "of 127.0.0.1: " in caplog.text


@pytest.mark.slow
@pytest.mark.checks("relaax/server/ports")
def test_who_only_asks_whether_it_serves_stays_as_long_as_he_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 1.5)
    with running() as server, contextlib.ExitStack() as stack:
        asking = stack.enter_context(RawCaller(server.address))
        (silent,) = idle(stack, server, 1)
        silent.settimeout(0.2)
        while closed(server, "silent") < 1:
            stream = asking.begin(CHECK)
            asking.send(stream, b"\0\0\0\0\0", ends=True)
            assert asking.ended(stream)
            with contextlib.suppress(TimeoutError):
                silent.recv(4096)
        wait_until(lambda: counts(server) == {"proven": 0, "strange": 1}, "he is left", PATIENCE)


@pytest.mark.slow
@pytest.mark.checks("relaax/server/ports")
def test_of_too_many_strangers_those_of_the_largest_crowd_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_STRANGERS", 8)
    monkeypatch.setattr(connections, "NEW_SECONDS", 0.0)
    with running() as server, contextlib.ExitStack() as stack:
        few = idle(stack, server, 3, "127.0.0.2")
        wait_until(lambda: counts(server)["strange"] == 3, "the first are there", PATIENCE)
        crowd = idle(stack, server, 12)
        wait_until(lambda: closed(server, "crowded") == 7, "the others go", PATIENCE)
        wait_until(lambda: counts(server)["strange"] == 8, "they have gone", PATIENCE)
        for connection in few:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    assert connection.recv(4096), "who is alone stays"
        assert len(crowd) == 12


@pytest.mark.slow
@pytest.mark.checks("relaax/server/ports")
def test_where_the_port_is_full_workers_find_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC itself turns away whoever comes last."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 32)
    monkeypatch.setattr(connections, "NEW_SECONDS", 0.0)
    with running() as server, contextlib.ExitStack() as stack:
        idle(stack, server, 100)
        with parameter_client(server.address, unavailable_after=PATIENCE) as client:
            client.register(registration())
            client.pull()
            for _ in range(3):
                idle(stack, server, 50)
                client.push(gradient(1), env_steps=1)
            assert server.version == 3
        assert closed(server, "crowded")


def test_who_goes_first() -> None:
    ends = {
        _End("10.0.0.1", 1): _GrpcConnection(3, 0, 0.0, 5.0),
        _End("10.0.0.1", 2): _GrpcConnection(4, 0, 0.0, 4.0),
        _End("10.0.0.1", 3): _GrpcConnection(5, 0, 0.0, 6.0),
        _End("10.0.0.2", 1): _GrpcConnection(6, 0, 0.0, 0.0),
        _End("10.0.0.2", 2): _GrpcConnection(7, 0, 0.0, 9.0),
    }
    order = [(end.host, end.port) for end in _first_to_close(ends, 5)]
    assert order == [("10.0.0.1", 2), ("10.0.0.2", 1), ("10.0.0.1", 1), ("10.0.0.1", 3), ("10.0.0.2", 2)]
    assert _first_to_close(ends, 0) == _first_to_close(ends, -1) == []


@pytest.mark.parametrize(
    ("peer", "end"),
    [
        ("ipv4:10.0.0.1:5000", ("10.0.0.1", 5000)),
        ("ipv6:%5B::1%5D:5000", ("::1", 5000)),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", ("fe80::1", 1)),
        ("unix:", ("", 0)),
    ],
)
def test_the_end_of_a_peer(peer: str, end: tuple[str, int]) -> None:
    assert _end_of(peer) == end
