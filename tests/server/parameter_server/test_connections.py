"""Connections of the gRPC port: idle connections are closed, and workers keep their connections."""

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
    """Open connections that send no data."""
    host, _, port = server.address.rpartition(":")
    return [
        stack.enter_context(socket.create_connection((host, int(port)), PATIENCE, source_address=(source, 0)))
        for _ in range(count)
    ]


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server closes the connection within `PATIENCE` seconds."""
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def closed_count(server: Running, reason: str) -> int:
    return server.server.protection.connections.closed[reason]


def counts(server: Running) -> dict[str, int]:
    return server.server.protection.connections.counts


@pytest.mark.slow
@pytest.mark.checks("relaax/server/ports")
def test_1000_idle_connections_are_closed_and_a_worker_is_not(
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
        assert all(is_closed(connection) for connection in crowd)
        wait_until(
            lambda: counts(server) == {"proven": 1, "strange": 0}, "only the worker's connection is open", PATIENCE
        )
        client.push(gradient(1), env_steps=1)
        assert server.version == 2
        wait_until(lambda: "a connection without a call for 0.5 s" in caplog.text, "it is logged", PATIENCE)
        assert closed_count(server, "silent") >= MANY
        assert counts(server) == {"proven": 1, "strange": 0}, "the worker's connection is the same"
    assert "from 127.0.0.1: " in caplog.text


@pytest.mark.slow
@pytest.mark.checks("relaax/server/ports")
def test_repeated_health_checks_keep_a_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 1.5)
    with running() as server, contextlib.ExitStack() as stack:
        checker = stack.enter_context(RawCaller(server.address))
        (silent,) = idle(stack, server, 1)
        silent.settimeout(0.2)
        while closed_count(server, "silent") < 1:
            stream = checker.begin(CHECK)
            checker.send(stream, b"\0\0\0\0\0", ends=True)
            assert checker.ended(stream)
            with contextlib.suppress(TimeoutError):
                silent.recv(4096)
        wait_until(lambda: counts(server) == {"proven": 0, "strange": 1}, "only the checker is connected", PATIENCE)


@pytest.mark.slow
@pytest.mark.checks("relaax/server/ports")
def test_excess_connections_of_the_largest_host_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_STRANGERS", 8)
    monkeypatch.setattr(connections, "NEW_SECONDS", 0.0)
    with running() as server, contextlib.ExitStack() as stack:
        few = idle(stack, server, 3, "127.0.0.2")
        wait_until(lambda: counts(server)["strange"] == 3, "the first are connected", PATIENCE)
        crowd = idle(stack, server, 12)
        wait_until(lambda: closed_count(server, "crowded") == 7, "the excess is closed", PATIENCE)
        wait_until(lambda: counts(server)["strange"] == 8, "the excess is disconnected", PATIENCE)
        for connection in few:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    assert connection.recv(4096), "the host with few connections keeps them"
        assert len(crowd) == 12


@pytest.mark.slow
@pytest.mark.checks("relaax/server/ports")
def test_workers_connect_to_a_full_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this protection, gRPC would refuse the newest connection."""
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
        assert closed_count(server, "crowded")


def test_longest_silent_of_the_largest_network_closes_first() -> None:
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
def test_host_and_port_of_a_peer(peer: str, end: tuple[str, int]) -> None:
    assert _end_of(peer) == end
